{{/* One worker as a container. Takes (dict "root" $ "name" name "class" class "sidecar" false). */}}
{{- define "headrace.workerContainer" -}}
{{- $root := .root -}}
{{- $class := .class -}}
name: worker
image: {{ include "headrace.image" (dict "root" $root "image" $class.image) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
args: [worker]
{{- if .sidecar }}
restartPolicy: Always
{{- end }}
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  - {name: HEADRACE_WORKER_NAME, value: "$(POD_NAME)"}
  - {name: HEADRACE_WORKER_COORDINATOR, value: {{ include "headrace.coordinatorAddress" $root | quote }}}
  - {name: HEADRACE_WORKER_GRPC_ADDRESS, value: {{ include "headrace.listen" (dict "root" $root "port" 7310) | quote }}}
  # Names of pods are in no DNS; their addresses reach them from everywhere in the cluster.
  - {name: HEADRACE_WORKER_ADVERTISE, value: {{ ternary "[$(POD_IP)]:7310" "$(POD_IP):7310" $root.Values.ipv6 | quote }}}
  - {name: HEADRACE_WORKER_METRICS_ADDRESS, value: {{ include "headrace.listen" (dict "root" $root "port" 7311) | quote }}}
  {{- if eq $class.sockets.mode "off" }}
  - {name: HEADRACE_WORKER_SOCKET_DIR, value: ""}
  {{- else }}
  - {name: HEADRACE_WORKER_SOCKET_DIR, value: {{ printf "%s/sockets" $class.sockets.path | quote }}}
  - {name: HEADRACE_WORKER_SOCKET_GROUP, value: {{ $class.sockets.group | int64 | quote }}}
  {{- end }}
  - {name: HEADRACE_WORKER_POOL, value: {{ include "headrace.pool" . | quote }}}
  - {name: HEADRACE_WORKER_RETIRING, value: {{ $class.retiring | quote }}}
  - {name: HEADRACE_WORKER_ENGINE, value: {{ $class.engine | quote }}}
  # Not all cores of the node, which is what a pod without a CPU limit sees.
  - {name: HEADRACE_WORKER_THREADS, value: {{ $class.cpu | int | quote }}}
  - {name: HEADRACE_WORKER_BATCHES_IN_FLIGHT, value: {{ $class.batchesInFlight | int | quote }}}
  - {name: HEADRACE_WORKER_READ_AHEAD_BYTES, value: {{ include "headrace.bytes" $class.memory.readAhead | quote }}}
  - {name: HEADRACE_WORKER_DRAIN_DEADLINE_S, value: {{ $class.drainSeconds | int | quote }}}
  - {name: HEADRACE_WORKER_LOG_FORMAT, value: json}
  - {name: HEADRACE_WORKER_LOG_LEVEL, value: {{ $class.logLevel }}}
  {{- with $root.Values.data.roots }}
  - {name: HEADRACE_WORKER_DATA_ROOTS, value: {{ . | quote }}}
  {{- end }}
  {{- include "headrace.securityEnv" (dict "root" $root "prefix" "HEADRACE_WORKER_") | nindent 2 }}
  {{- include "headrace.givenEnv" (dict "root" $root "own" $class.env) | nindent 2 }}
{{- include "headrace.dataEnvFrom" $root | nindent 0 }}
ports:
  - {name: batches, containerPort: 7310}
  - {name: metrics, containerPort: 7311}
# Alive: the event loop turns. Ready: a coordinator answers its heartbeats, and it does not drain. SIGTERM is the drain: lanes are
# handed back and batches in flight are finished within drainSeconds, so no preStop hook is needed.
startupProbe:
  httpGet: {path: /healthz, port: metrics, scheme: {{ include "headrace.scheme" $root }}}
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /healthz, port: metrics, scheme: {{ include "headrace.scheme" $root }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics, scheme: {{ include "headrace.scheme" $root }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
resources:
  requests:
    cpu: {{ $class.cpu | quote }}
    memory: {{ include "headrace.memoryLimit" . | quote }}
    {{- if $class.gpus }}
    {{ $class.gpuResource }}: {{ $class.gpus | quote }}
    {{- end }}
  limits:
    {{- if $class.cpuLimit }}
    cpu: {{ $class.cpu | quote }}
    {{- end }}
    memory: {{ include "headrace.memoryLimit" . | quote }}
    {{- if $class.gpus }}
    {{ $class.gpuResource }}: {{ $class.gpus | quote }}
    {{- end }}
securityContext:
  {{- if .sidecar }}
  runAsUser: {{ $root.Values.podSecurity.user | int64 }}
  runAsGroup: {{ $root.Values.podSecurity.group | int64 }}
  {{- end }}
  {{- include "headrace.containerSecurityContext" $root | nindent 2 }}
volumeMounts:
  {{- include "headrace.serviceMounts" (dict "root" $root) | nindent 2 }}
  {{- if ne $class.sockets.mode "off" }}
  - {name: sockets, mountPath: {{ $class.sockets.path }}}
  {{- end }}
{{- end -}}

{{/* Seconds from SIGTERM to SIGKILL of a pod with a worker in it: the drain, and some to leave. Takes (dict "class" class). */}}
{{- define "headrace.workerGrace" -}}
{{ add .class.drainSeconds 15 }}
{{- end -}}

{{/* Name of the class that a sidecar is like: the first whose engine needs no GPU. Takes (dict "root" $ "classes" classes). */}}
{{- define "headrace.sidecarClass" -}}
{{- $found := "" -}}
{{- range $name := keys .classes | sortAlpha -}}
{{- if and (not $found) (not (has (get $.classes $name).engine (include "headrace.gpuEngines" $ | fromYamlArray))) -}}
{{- $found = $name -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* The directory of a class's sockets, for workers and trainers. Takes (dict "class" class). */}}
{{- define "headrace.socketVolume" -}}
- name: sockets
  {{- if eq .class.sockets.mode "hostPath" }}
  hostPath:
    path: {{ .class.sockets.path }}
    type: {{ ternary "DirectoryOrCreate" "Directory" .class.sockets.prepare }}
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ .class.sockets.claim }}
  {{- end }}
{{- end -}}
