{{/* Names and labels. A component is coordinator, store, worker, trainer or test; a class is a key of .Values.workers. */}}

{{- define "headrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "headrace.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that a selector may use: they never change. Takes (dict "root" $ "component" "worker" "class" "cpu"). */}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ include "headrace.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- if .class }}
headrace.dev/class: {{ .class }}
{{- end }}
{{- end -}}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/part-of: headrace
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* repository, tag and digest as one reference. Takes (dict "root" $ "image" dict); empty fields are those of .Values.image. */}}
{{- define "headrace.image" -}}
{{- $base := .root.Values.image -}}
{{- $repository := default $base.repository .image.repository -}}
{{- $own := or .image.tag .image.digest -}}
{{- $digest := ternary .image.digest $base.digest (not (empty $own)) -}}
{{- $tag := default .root.Chart.AppVersion (default $base.tag .image.tag) -}}
{{- if $digest -}}{{ printf "%s@%s" $repository $digest }}{{- else -}}{{ printf "%s:%s" $repository $tag }}{{- end -}}
{{- end -}}

{{/* What workers of a class are scaled together with, in the metrics: no other release has it, as none in the namespace has the
same Services, and no class has a dot in its name. Takes (dict "root" $ "name" "cpu"). */}}
{{- define "headrace.pool" -}}
{{ include "headrace.fullname" .root }}.{{ .name }}
{{- end -}}

{{/* Engines that work on a GPU; the others of the schema work on the CPU, and `auto` on either. */}}
{{- define "headrace.gpuEngines" -}}
[cvcuda, dali-gpu]
{{- end -}}

{{/* Where a program listens. Takes (dict "root" $ "port" 7300). */}}
{{- define "headrace.listen" -}}
{{ ternary "[::]" "0.0.0.0" .root.Values.ipv6 }}:{{ .port }}
{{- end -}}

{{- define "headrace.coordinatorHost" -}}
{{ include "headrace.fullname" . }}-coordinator.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "headrace.statusHost" -}}
{{ include "headrace.fullname" . }}-status.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "headrace.coordinatorAddress" -}}
{{ include "headrace.coordinatorHost" . }}:7300
{{- end -}}

{{- define "headrace.workerTlsName" -}}
{{ default (printf "%s-worker.%s.svc" (include "headrace.fullname" .) .Release.Namespace) .Values.tls.workerName }}
{{- end -}}

{{/* tls.mode; YAML makes false of an `off` without quotes, which is taken for the word. */}}
{{- define "headrace.tlsMode" -}}
{{ default "off" .Values.tls.mode }}
{{- end -}}

{{/* Name of a Secret with certificates. Takes (dict "root" $ "component" "worker"). */}}
{{- define "headrace.tlsSecret" -}}
{{- if eq (include "headrace.tlsMode" .root) "certManager" -}}
{{ include "headrace.fullname" .root }}-{{ .component }}-tls
{{- else -}}
{{ index .root.Values.tls.secret .component }}
{{- end -}}
{{- end -}}

{{- define "headrace.scheme" -}}
{{ ternary "HTTP" "HTTPS" (eq (include "headrace.tlsMode" .) "off") }}
{{- end -}}

{{- define "headrace.storeUrl" -}}
{{- if eq .Values.store.mode "internal" -}}
redis://{{ include "headrace.fullname" . }}-store.{{ .Release.Namespace }}.svc:6379/0
{{- else if eq .Values.store.mode "memory" -}}
memory://
{{- else -}}
{{ .Values.store.external.url }}
{{- end -}}
{{- end -}}

{{/* What all keys in the store begin with. A store that others may use, too, has one for each release: no namespace has a dot in its
name, so that no two are alike. */}}
{{- define "headrace.storePrefix" -}}
{{- $own := ternary (printf "%s.%s" .Release.Namespace .Release.Name) "headrace" (eq .Values.store.mode "external") -}}
{{ default $own .Values.store.prefix }}
{{- end -}}

{{/* Ports of an external store's servers, with commas between: of each address what is behind its last colon, which is not in the
brackets of an IPv6 address. */}}
{{- define "headrace.storePorts" -}}
{{- $url := .Values.store.external.url -}}
{{- $sentinel := hasPrefix "sentinel://" $url -}}
{{- $ports := list -}}
{{- range $address := regexReplaceAll "^[a-z]+://([^/?#]*@)?([^/?#]*).*$" $url "${2}" | splitList "," -}}
{{- $ports = append $ports (default (ternary "26379" "6379" $sentinel) (regexFind ":[0-9]+$" $address | trimPrefix ":")) -}}
{{- end -}}
{{- /* The servers that sentinels name. */ -}}
{{- if $sentinel -}}{{- $ports = append $ports "6379" -}}{{- end -}}
{{- $ports | uniq | join "," -}}
{{- end -}}

{{/* name/key of the store's password as YAML; empty: none. */}}
{{- define "headrace.storePassword" -}}
{{- if eq .Values.store.mode "internal" -}}
{{- $secret := .Values.store.internal.passwordSecret -}}
{{- with default .Values.tokens.secretName $secret.name }}
name: {{ . }}
key: {{ $secret.key }}
{{- end -}}
{{- else if eq .Values.store.mode "external" -}}
{{- with .Values.store.external.passwordSecret.name }}
name: {{ . }}
key: {{ $.Values.store.external.passwordSecret.key }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The classes in use, each with workerDefaults filled in, as YAML: name -> class. */}}
{{- define "headrace.classes" -}}
{{- $classes := dict -}}
{{- range $name, $own := .Values.workers -}}
{{- $class := mustMergeOverwrite (deepCopy $.Values.workerDefaults) (deepCopy (default dict $own)) -}}
{{- $_ := set $class.sockets "mode" (default "off" $class.sockets.mode) -}}{{/* as in headrace.tlsMode */}}
{{- if $class.enabled -}}{{- $_ := set $classes $name $class -}}{{- end -}}
{{- end -}}
{{- toYaml $classes -}}
{{- end -}}
