{{/* What pods have in common. */}}

{{- define "headrace.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .Values.podSecurity.user }}
runAsGroup: {{ .Values.podSecurity.group }}
fsGroup: {{ .Values.podSecurity.group }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  {{- toYaml .Values.podSecurity.seccompProfile | nindent 2 }}
{{- end -}}

{{- define "headrace.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Fields of a pod's spec that every pod of ours has. Takes (dict "root" $ "of" values-of-the-component). */}}
{{- define "headrace.podBasics" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "headrace.topologySpread" -}}
{{- if .root.Values.topologySpread.enabled }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ $.root.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "headrace.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Variables of TLS and tokens, the same for both services. Takes (dict "root" $ "prefix" "HEADRACE_WORKER_"). */}}
{{- define "headrace.securityEnv" -}}
{{- if ne (include "headrace.tlsMode" .root) "off" }}
- {name: {{ .prefix }}TLS_CERT, value: /etc/headrace/tls/tls.crt}
- {name: {{ .prefix }}TLS_KEY, value: /etc/headrace/tls/tls.key}
- {name: {{ .prefix }}TLS_CA, value: /etc/headrace/tls/ca.crt}
- {name: {{ .prefix }}REQUIRE_CLIENT_CERT, value: {{ .root.Values.tls.requireClientCert | quote }}}
{{- end }}
{{- if .root.Values.tokens.secretName }}
- {name: {{ .prefix }}FLEET_TOKEN_FILE, value: /etc/headrace/tokens/fleet}
{{- end }}
{{- if .root.Values.tokens.allowPlaintext }}
- {name: {{ .prefix }}ALLOW_PLAINTEXT_TOKENS, value: "true"}
{{- end }}
{{- end -}}

{{/* Variables that the values name: of where data lie, and a component's own, which win. Takes (dict "root" $ "own" class.env). */}}
{{- define "headrace.givenEnv" -}}
{{- range $name, $value := mergeOverwrite (deepCopy (default dict .root.Values.data.env)) (default dict .own) }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{- define "headrace.dataEnvFrom" -}}
{{- with .Values.data.envFromSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end -}}

{{/* Mounts of TLS, tokens and data. Takes (dict "root" $). The token's volume is `tokens`, so that a pod can have others besides. */}}
{{- define "headrace.serviceMounts" -}}
{{- if ne (include "headrace.tlsMode" .root) "off" }}
- {name: tls, mountPath: /etc/headrace/tls, readOnly: true}
{{- end }}
{{- if .root.Values.tokens.secretName }}
- {name: tokens, mountPath: /etc/headrace/tokens, readOnly: true}
{{- end }}
{{- if .root.Values.data.claim }}
- {name: data, mountPath: {{ .root.Values.data.mountPath }}, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{/* Their volumes. Takes (dict "root" $ "component" "worker"). Only the coordinator gets the admin token. */}}
{{- define "headrace.serviceVolumes" -}}
{{- $tokens := .root.Values.tokens -}}
{{- if ne (include "headrace.tlsMode" .root) "off" }}
- name: tls
  secret:
    secretName: {{ include "headrace.tlsSecret" . }}
    defaultMode: 0440
{{- end }}
{{- if $tokens.secretName }}
- name: tokens
  secret:
    secretName: {{ $tokens.secretName }}
    defaultMode: 0440
    items:
      - {key: {{ $tokens.fleetKey }}, path: fleet}
      {{- if eq .component "coordinator" }}
      - {key: {{ $tokens.adminKey }}, path: admin}
      {{- end }}
{{- end }}
{{- if .root.Values.data.claim }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .root.Values.data.claim }}
    readOnly: true
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- end -}}
