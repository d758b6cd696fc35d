{{/* Combinations of values that cannot work. Each is a sentence that says what to change; tests/chart/test_refusals.py has one of each. */}}

{{- define "headrace.checks" -}}
{{- $v := .Values -}}
{{- if not $v.image.repository -}}
{{- fail "image.repository is empty: Headrace publishes no image, so build deploy/docker/cpu.Dockerfile, push it, and name it here" -}}
{{- end -}}
{{- include "headrace.checkSecurity" . -}}
{{- include "headrace.checkStore" . -}}
{{- include "headrace.checkEnv" (dict "of" "coordinator" "program" "COORDINATOR" "env" $v.coordinator.env) -}}
{{- range $name := keys (default dict $v.data.env) | sortAlpha -}}
{{- if regexMatch "^(HEADRACE_|POD_)" $name -}}
{{- fail (printf "data.env has %s, which is none of an object store's: a setting of the programs goes into coordinator.env or workers.<class>.env" $name) -}}
{{- end -}}
{{- end -}}
{{- $classes := include "headrace.classes" . | fromYaml -}}
{{- if not $classes -}}
{{- fail "workers has no class that is enabled: without workers no batch is made" -}}
{{- end -}}
{{- range $name, $class := $classes -}}
{{- include "headrace.checkClass" (dict "root" $ "name" $name "class" $class) -}}
{{- end -}}
{{- if and $v.ipv6 $v.networkPolicy.enabled -}}
{{- if not (regexMatch "cidr: [\"']?[0-9a-f]*:" (toYaml $v.networkPolicy.data)) -}}
{{- fail "ipv6 is on, and networkPolicy.data has no IPv6 range, so no data could be read: add {ipBlock: {cidr: \"::/0\", except: [\"fe80::/10\", \"fd00:ec2::/32\"]}}" -}}
{{- end -}}
{{- end -}}
{{- include "headrace.checkTrainer" (dict "root" . "classes" $classes) -}}
{{- if and $v.monitoring.dashboards (not (.Files.Glob "files/dashboards/*.json")) -}}
{{- fail "monitoring.dashboards is on, and this copy of the chart has no files/dashboards: take a whole one" -}}
{{- end -}}
{{- if and $v.monitoring.rules (not (.Files.Glob "files/rules/*.yaml")) -}}
{{- fail "monitoring.rules is on, and this copy of the chart has no files/rules: take a whole one" -}}
{{- end -}}
{{- end -}}

{{- define "headrace.checkSecurity" -}}
{{- $v := .Values -}}
{{- if eq (include "headrace.tlsMode" .) "secret" -}}
{{- range $component := list "coordinator" "worker" -}}
{{- if not (index $v.tls.secret $component) -}}
{{- fail (printf "tls.mode is secret and tls.secret.%s is empty: name the Secret with its tls.crt, tls.key and ca.crt" $component) -}}
{{- end -}}
{{- end -}}
{{- if and $v.tls.requireClientCert (not $v.tls.secret.trainer) -}}
{{- fail "tls.requireClientCert is on and tls.secret.trainer is empty: trainers need a certificate to show; name its Secret, or turn requireClientCert off" -}}
{{- end -}}
{{- end -}}
{{- if and $v.tokens.secretName (eq (include "headrace.tlsMode" .) "off") (not $v.tokens.allowPlaintext) -}}
{{- fail "tokens would travel without TLS: set tls.mode to certManager or secret; or tokens.allowPlaintext: true where the network is trusted; or tokens.secretName: \"\" for a trial without tokens" -}}
{{- end -}}
{{- if and $v.tokens.requireJobToken (eq (include "headrace.tlsMode" .) "off") (not $v.tokens.allowPlaintext) -}}
{{- fail "tokens.requireJobToken is on without TLS: jobs' tokens would travel in the clear; set tls.mode, or tokens.requireJobToken: false" -}}
{{- end -}}
{{- end -}}

{{- define "headrace.checkStore" -}}
{{- $store := .Values.store -}}
{{- if and (eq $store.mode "memory") (gt (int .Values.coordinator.replicas) 1) -}}
{{- fail "store.mode is memory and coordinator.replicas is above 1: each replica would know other jobs; set replicas to 1, or use a store" -}}
{{- end -}}
{{- if and (eq $store.mode "internal") (not (include "headrace.storePassword" .)) -}}
{{- fail "the internal store needs a password: set tokens.secretName or store.internal.passwordSecret.name to a Secret that has it" -}}
{{- end -}}
{{- if eq $store.mode "external" -}}
{{- if not $store.external.url -}}
{{- fail "store.mode is external and store.external.url is empty: give redis://, rediss:// or sentinel://" -}}
{{- end -}}
{{- if regexMatch "(?i)//[^?#]*:[^?#]*@|[?&][^=&]*password=" $store.external.url -}}
{{- fail "store.external.url holds a password, which everyone who may read pods would see: put it into a Secret and name that in store.external.passwordSecret" -}}
{{- end -}}
{{- if and $store.external.caSecret.name (not (hasPrefix "rediss://" $store.external.url)) -}}
{{- fail "store.external.caSecret is set and store.external.url is not rediss://: the certificate would never be looked at" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Variables that the chart itself gives, under some values or always, or that its probes and limits rely on: twice in a pod, the last
one would win, and the other half of what a value stands for would not follow. With what to set instead; a dot begins a value of the
component's own. */}}
{{- define "headrace.ownVariables" -}}
POD_NAME:
POD_IP:
HEADRACE_ADMIN_TOKEN: tokens.secretName
{{- range $program := list "COORDINATOR" "WORKER" }}
HEADRACE_{{ $program }}_GRPC_ADDRESS:
HEADRACE_{{ $program }}_TLS_CERT: tls.mode
HEADRACE_{{ $program }}_TLS_KEY: tls.mode
HEADRACE_{{ $program }}_TLS_CA: tls.mode
HEADRACE_{{ $program }}_REQUIRE_CLIENT_CERT: tls.requireClientCert
HEADRACE_{{ $program }}_REQUIRE_CLIENT_CERT_HTTP: tls.requireClientCert (for gRPC; probes of kubelets show no certificate)
HEADRACE_{{ $program }}_FLEET_TOKEN_FILE: tokens.secretName
HEADRACE_{{ $program }}_FLEET_TOKEN: tokens.secretName
HEADRACE_{{ $program }}_ALLOW_PLAINTEXT_TOKENS: tokens.allowPlaintext
HEADRACE_{{ $program }}_DATA_ROOTS: data.roots
HEADRACE_{{ $program }}_LOG_FORMAT:
HEADRACE_{{ $program }}_LOG_LEVEL: .logLevel
{{- end }}
HEADRACE_COORDINATOR_ADMIN_ADDRESS:
HEADRACE_COORDINATOR_ADMIN_TOKEN_FILE: tokens.secretName
HEADRACE_COORDINATOR_ADMIN_TOKEN: tokens.secretName
HEADRACE_COORDINATOR_REQUIRE_JOB_TOKEN: tokens.requireJobToken
HEADRACE_COORDINATOR_STORE: store.mode
HEADRACE_COORDINATOR_STORE_PREFIX: store.prefix
HEADRACE_COORDINATOR_STORE_PASSWORD_FILE: store.external.passwordSecret
HEADRACE_COORDINATOR_STORE_TLS_CA: store.external.caSecret
HEADRACE_COORDINATOR_WORKER_TTL_S: .workerTtlSeconds
HEADRACE_COORDINATOR_MAX_RANK_BYTES: jobs.slots
HEADRACE_WORKER_NAME:
HEADRACE_WORKER_COORDINATOR:
HEADRACE_WORKER_ADVERTISE:
HEADRACE_WORKER_METRICS_ADDRESS:
HEADRACE_WORKER_POOL:
HEADRACE_WORKER_SOCKET_DIR: .sockets.path
HEADRACE_WORKER_SOCKET_GROUP: .sockets.group
HEADRACE_WORKER_RETIRING: .retiring
HEADRACE_WORKER_ENGINE: .engine
HEADRACE_WORKER_THREADS: .cpu
HEADRACE_WORKER_BATCHES_IN_FLIGHT: .batchesInFlight
HEADRACE_WORKER_READ_AHEAD_BYTES: .memory.readAhead
HEADRACE_WORKER_DRAIN_DEADLINE_S: .drainSeconds
{{- end -}}

{{/* Takes (dict "of" "workers.cpu" "program" "WORKER" "env" env). */}}
{{- define "headrace.checkEnv" -}}
{{- $own := include "headrace.ownVariables" . | fromYaml -}}
{{- $other := printf "HEADRACE_%s_" (ternary "WORKER" "COORDINATOR" (eq .program "COORDINATOR")) -}}
{{- range $name := keys (default dict .env) | sortAlpha -}}
{{- if hasPrefix $other $name -}}
{{- fail (printf "%s.env has %s, which is another program's and would change nothing" $.of $name) -}}
{{- end -}}
{{- if hasKey $own $name -}}
{{- $instead := get $own $name -}}
{{- if not $instead -}}
{{- fail (printf "%s.env has %s, which is the chart's own: no value changes it" $.of $name) -}}
{{- end -}}
{{- fail (printf "%s.env has %s, which the chart gives: set %s instead" $.of $name (ternary (print $.of $instead) $instead (hasPrefix "." $instead))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headrace.checkClass" -}}
{{- $class := .class -}}
{{- include "headrace.checkEnv" (dict "of" (printf "workers.%s" .name) "program" "WORKER" "env" $class.env) -}}
{{- $auto := $class.autoscaling -}}
{{- if and (eq $class.kind "DaemonSet") (ne $auto.mode "none") -}}
{{- fail (printf "workers.%s is a DaemonSet, which has one pod a node, and has autoscaling.mode %s: use kind Deployment or mode none" .name $auto.mode) -}}
{{- end -}}
{{- if and (ne $auto.mode "none") (gt (int $auto.min) (int $auto.max)) -}}
{{- fail (printf "workers.%s.autoscaling.min %d is above max %d" .name (int $auto.min) (int $auto.max)) -}}
{{- end -}}
{{- if and (eq $auto.mode "keda") (not $auto.prometheusAddress) -}}
{{- fail (printf "workers.%s.autoscaling.mode is keda and prometheusAddress is empty: give Prometheus' address, such as http://prometheus.monitoring.svc:9090" .name) -}}
{{- end -}}
{{- $sockets := $class.sockets -}}
{{- if and (eq $sockets.mode "claim") (not $sockets.claim) -}}
{{- fail (printf "workers.%s.sockets.mode is claim and sockets.claim is empty: name the PersistentVolumeClaim of a local volume that trainers mount, too" .name) -}}
{{- end -}}
{{- if and (eq $sockets.mode "claim") (eq $class.kind "DaemonSet") -}}
{{- fail (printf "workers.%s is a DaemonSet with sockets.mode claim: one claim is one node's volume; use hostPath, or a class for each node" .name) -}}
{{- end -}}
{{- if and (eq $class.kind "DaemonSet") (eq $sockets.mode "off") -}}
{{- fail (printf "workers.%s is a DaemonSet without sockets: beside the trainers it would serve them over the network; set sockets.mode to hostPath, or kind to Deployment" .name) -}}
{{- end -}}
{{- if ne $sockets.mode "off" -}}
{{- /* A name of ours, since no list of the system's and other programs' directories would be whole. No part begins with a dot, so that
none is `..`; and what pods or nodes have below the roots that are listed is nothing to mount over. */ -}}
{{- $ours := regexMatch "^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+/headrace[A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$" $sockets.path -}}
{{- if or (not $ours) (regexMatch "^/(bin|boot|dev|etc|home|lib|lib32|lib64|libx32|proc|root|sbin|sys|usr)/" $sockets.path) -}}
{{- fail (printf "workers.%s.sockets.path %s may be a directory of others, and pods mount the whole of it: name one of Headrace's alone, called headrace or headrace-... below a place for such data, as /run/headrace or /var/lib/team/headrace" .name $sockets.path) -}}
{{- end -}}
{{- /* A pod's name: the workload's and up to 17 characters. The kernel takes 107 bytes. */ -}}
{{- $longest := printf "%s/sockets/%s-worker-%s-0123456789-abcde.sock" $sockets.path (include "headrace.fullname" .root) .name -}}
{{- if gt (len $longest) 107 -}}
{{- fail (printf "workers.%s: a socket's path would have %d characters, and the kernel takes 107: shorten sockets.path, the class's name, or set fullnameOverride" .name (len $longest)) -}}
{{- end -}}
{{- end -}}
{{- $onGpu := has $class.engine (include "headrace.gpuEngines" . | fromYamlArray) -}}
{{- if and $onGpu (not $class.gpus) (not $class.runtimeClassName) (not (hasKey $class.env "NVIDIA_VISIBLE_DEVICES")) -}}
{{- fail (printf "workers.%s.engine %s works on a GPU, and the pod gets none: set gpus: 1, or runtimeClassName to use the trainers' GPU; on the CPU there are engine cpu and dali" .name $class.engine) -}}
{{- end -}}
{{- if gt (int $class.gpus) 1 -}}
{{- fail (printf "workers.%s.gpus is %d, and a worker uses one: set gpus: 1 and more replicas" .name (int $class.gpus)) -}}
{{- end -}}
{{- if and $onGpu (not $class.image.repository) (not $class.image.tag) (not $class.image.digest) -}}
{{- fail (printf "workers.%s.engine %s is not in the coordinators' image: build deploy/docker/gpu.Dockerfile, push it, and name it in workers.%s.image" .name $class.engine .name) -}}
{{- end -}}
{{- if and (gt (int $class.gpus) 0) (not $class.nodeSelector) (not $class.tolerations) (not $class.affinity) -}}
{{- fail (printf "workers.%s asks for GPUs, and nothing says on which nodes: set nodeSelector, affinity or tolerations" .name) -}}
{{- end -}}
{{- $_ := include "headrace.memoryLimit" (dict "root" .root "name" .name "class" $class) -}}
{{- end -}}

{{- define "headrace.checkTrainer" -}}
{{- $trainer := .root.Values.exampleTrainer -}}
{{- if $trainer.enabled -}}
{{- if not $trainer.dataset -}}
{{- fail "exampleTrainer is enabled and exampleTrainer.dataset is empty: name what `headrace index` has indexed" -}}
{{- end -}}
{{- if and .root.Values.tokens.requireJobToken (not $trainer.tokenSecret.name) -}}
{{- fail "exampleTrainer is enabled with tokens.requireJobToken and no exampleTrainer.tokenSecret.name: its job would be refused; name a Secret with the job's token" -}}
{{- end -}}
{{- if and (eq $trainer.sharedMemory "sidecar") (semverCompare "<1.29.0-0" .root.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "exampleTrainer.sharedMemory is sidecar, which needs Kubernetes 1.29 (this is %s): use none" .root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (eq $trainer.sharedMemory "sidecar") (not (include "headrace.sidecarClass" (dict "root" .root "classes" .classes))) -}}
{{- fail "exampleTrainer.sharedMemory is sidecar, and no class of workers has an engine for the CPU, which a sidecar works on: add one, or use class" -}}
{{- end -}}
{{- if eq $trainer.sharedMemory "class" -}}
{{- $class := get .classes $trainer.socketClass -}}
{{- if not $class -}}
{{- fail (printf "exampleTrainer.socketClass %q is no class of workers that is enabled" $trainer.socketClass) -}}
{{- end -}}
{{- if eq $class.sockets.mode "off" -}}
{{- fail (printf "exampleTrainer.socketClass %s offers no sockets: set workers.%s.sockets.mode" $trainer.socketClass $trainer.socketClass) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
