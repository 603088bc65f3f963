{{- define "plimsoll.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "plimsoll.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "plimsoll.name" .) .Release.Name -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "plimsoll.name" .) | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "plimsoll.selectorLabels" -}}
app.kubernetes.io/name: {{ include "plimsoll.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "plimsoll.labels" -}}
{{ include "plimsoll.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "plimsoll.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end }}

{{/* The pods that Prometheus reads and the NetworkPolicy guards. */}}
{{- define "plimsoll.podSelector" -}}
{{- if eq .Values.mode "fleet" }}{{ include "plimsoll.selectorLabels" . }}{{ else }}{{ toYaml .Values.sidecar.podLabels }}{{ end }}
{{- end }}

{{/* limits.drain_s, 5 s before it (preStop), 5 s to close the store, and 5 s to spare. */}}
{{- define "plimsoll.terminationGracePeriodSeconds" -}}
{{ add .Values.drainSeconds 15 }}
{{- end }}

{{/* A pod with this annotation is replaced when the configuration changes. */}}
{{- define "plimsoll.podAnnotations" -}}
{{- with .Values.config }}
checksum/plimsoll-config: {{ sha256sum . }}
{{- end }}
{{- end }}

{{- define "plimsoll.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "plimsoll.adminScheme" -}}
{{- if and .Values.tls.secret .Values.tls.admin }}HTTPS{{ else }}HTTP{{ end -}}
{{- end }}

{{/* The secrets that are mounted: files, because a variable is inherited and shown by tools. */}}
{{- define "plimsoll.secrets" -}}
{{ concat (list .Values.admin.secret .Values.clientToken.secret .Values.tls.secret (include "plimsoll.redisSecret" .) (include "plimsoll.otelSecret" .)) .Values.secrets | compact | uniq | toJson }}
{{- end }}

{{/* The volume of a secret: its name has no dots and at most 63 characters, that of a secret may. */}}
{{- define "plimsoll.secretVolume" -}}
secret-{{ if or (contains "." .) (gt (len .) 56) }}{{ sha256sum . | trunc 16 }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* The secret of the server that a fleet shares; empty if it shares none. */}}
{{- define "plimsoll.redisSecret" -}}
{{- if eq .Values.mode "fleet" }}{{ .Values.fleet.redis.secret }}{{ end -}}
{{- end }}

{{/* The secret with the collector's headers; empty if it needs none. */}}
{{- define "plimsoll.otelSecret" -}}
{{- if .Values.otel.endpoint }}{{ .Values.otel.headers.secret }}{{ end -}}
{{- end }}

{{/* Whose telemetry it is: without the pod, the sums of one replica would replace those of another. */}}
{{- define "plimsoll.otelEnv" -}}
{{- with .Values.otel }}
- {name: PLIMSOLL_OTEL_ENDPOINT, value: {{ .endpoint | quote }}}
- {name: PLIMSOLL_OTEL_PROTOCOL, value: {{ .protocol | quote }}}
{{- with include "plimsoll.otelSecret" $ }}
- {name: PLIMSOLL_OTEL_HEADERS, value: "file:/secrets/{{ . }}/{{ $.Values.otel.headers.key }}"}
{{- end }}
{{- range $variable, $path := dict "POD_NAME" "metadata.name" "POD_NAMESPACE" "metadata.namespace" "POD_UID" "metadata.uid" "NODE_NAME" "spec.nodeName" }}
- {name: {{ $variable }}, valueFrom: {fieldRef: {fieldPath: {{ $path }}}}}
{{- end }}
{{- $own := list "service.instance.id=$(POD_UID)" "k8s.pod.uid=$(POD_UID)" "k8s.pod.name=$(POD_NAME)" "k8s.namespace.name=$(POD_NAMESPACE)" "k8s.node.name=$(NODE_NAME)" }}
{{- range $name, $value := .attributes }}{{ $own = append $own (printf "%s=%s" $name $value) }}{{ end }}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: {{ join "," $own | quote }}}
{{- end }}
{{- end }}

{{/* The container of both modes: one source for its name, ports, probes and variables. */}}
{{- define "plimsoll.container" -}}
- name: plimsoll
  image: {{ include "plimsoll.image" . }}
  {{- if .Values.image.digest }}
  imagePullPolicy: IfNotPresent
  {{- else }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- end }}
  {{- if and (eq .Values.mode "sidecar") .Values.sidecar.native }}
  restartPolicy: Always
  {{- end }}
  env:
    {{- if eq .Values.mode "sidecar" }}
    # Only the application beside it connects. Probes and Prometheus come from outside: probes need no
    # token, Prometheus needs the read token (`authorization.credentials_file`), and `say`, `compact` and
    # deletions need the other one.
    - {name: PLIMSOLL_LISTEN, value: "127.0.0.1:8787"}
    {{- else }}
    - {name: PLIMSOLL_LISTEN, value: "0.0.0.0:8787"}
    {{- end }}
    - {name: PLIMSOLL_ADMIN, value: "0.0.0.0:9797"}
    - {name: PLIMSOLL_DATA, value: /data}
    - {name: PLIMSOLL_ADMIN_TOKEN, value: "file:/secrets/{{ .Values.admin.secret }}/{{ .Values.admin.tokenKey }}"}
    - {name: PLIMSOLL_ADMIN_READ_TOKEN, value: "file:/secrets/{{ .Values.admin.secret }}/{{ .Values.admin.readTokenKey }}"}
    {{- with .Values.clientToken }}
    {{- if .secret }}
    - {name: PLIMSOLL_CLIENT_TOKEN, value: "file:/secrets/{{ .secret }}/{{ .key }}"}
    {{- end }}
    {{- end }}
    {{- if .Values.tls.secret }}
    - {name: PLIMSOLL_TLS_CERTIFICATE, value: /secrets/{{ .Values.tls.secret }}/tls.crt}
    - {name: PLIMSOLL_TLS_KEY, value: /secrets/{{ .Values.tls.secret }}/tls.key}
    - {name: PLIMSOLL_TLS_ADMIN, value: {{ .Values.tls.admin | quote }}}
    {{- end }}
    {{- with include "plimsoll.redisSecret" . }}
    - {name: PLIMSOLL_STORE_URL, value: "file:/secrets/{{ . }}/{{ $.Values.fleet.redis.urlKey }}"}
    - {name: PLIMSOLL_STORE_SECRET, value: "file:/secrets/{{ . }}/{{ $.Values.fleet.redis.secretKey }}"}
    {{- end }}
    - {name: PLIMSOLL_LIMITS_DRAIN_S, value: {{ .Values.drainSeconds | quote }}}
    {{- if .Values.otel.endpoint }}
    {{- include "plimsoll.otelEnv" . | nindent 4 }}
    {{- end }}
    {{- range $name, $value := .Values.env }}
    - {name: {{ $name }}, value: {{ $value | quote }}}
    {{- end }}
  ports:
    {{- if eq .Values.mode "fleet" }}
    - {name: clients, containerPort: 8787}
    {{- end }}
    - {name: admin, containerPort: 9797}
  startupProbe:
    httpGet: {path: /readyz, port: admin, scheme: {{ include "plimsoll.adminScheme" . }}}
    periodSeconds: 1
    failureThreshold: 30
  readinessProbe:
    httpGet: {path: /readyz, port: admin, scheme: {{ include "plimsoll.adminScheme" . }}}
    periodSeconds: 5
  livenessProbe:
    httpGet: {path: /healthz, port: admin, scheme: {{ include "plimsoll.adminScheme" . }}}
    periodSeconds: 10
    failureThreshold: 3
  {{- if and (eq .Values.mode "fleet") (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) }}
  lifecycle:
    # The Service sends no more new connections by the time Plimsoll stops taking them.
    preStop: {sleep: {seconds: 5}}
  {{- end }}
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    capabilities: {drop: [ALL]}
  volumeMounts:
    - {name: plimsoll-data, mountPath: /data}
    {{- if .Values.config }}
    - {name: plimsoll-config, mountPath: /etc/plimsoll, readOnly: true}
    {{- end }}
    {{- range include "plimsoll.secrets" . | fromJsonArray }}
    - {name: {{ include "plimsoll.secretVolume" . }}, mountPath: /secrets/{{ . }}, readOnly: true}
    {{- end }}
{{- end }}

{{/* The volumes of configuration and secrets, in both modes. */}}
{{- define "plimsoll.readOnlyVolumes" -}}
{{- if .Values.config }}
- name: plimsoll-config
  configMap: {name: {{ include "plimsoll.fullname" . }}}
{{- end }}
{{- range include "plimsoll.secrets" . | fromJsonArray }}
- name: {{ include "plimsoll.secretVolume" . }}
  secret: {secretName: {{ . }}}
{{- end }}
{{- end }}

{{- define "plimsoll.dataVolume" -}}
# Sessions last as long as the pod; a volume claim here lets them outlive it. The folder belongs to root,
# so Plimsoll warns at each start that others could see what is in it: here only this pod can.
- name: plimsoll-data
  emptyDir: {sizeLimit: {{ .Values.data.size }}}
{{- end }}
