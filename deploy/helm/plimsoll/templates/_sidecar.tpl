{{/*
What an application's own chart includes, with this chart as a dependency in mode sidecar:

  {{- $plimsoll := .Subcharts.plimsoll }}
  initContainers:
    {{- include "plimsoll.sidecar.container" $plimsoll | nindent 4 }}    (under containers, if sidecar.native is false)
  containers:
    - name: agent
      env:
        {{- include "plimsoll.sidecar.env" $plimsoll | nindent 8 }}
  volumes:
    {{- include "plimsoll.sidecar.volumes" $plimsoll | nindent 4 }}
*/}}
{{- define "plimsoll.sidecar.container" -}}
{{- if ne .Values.mode "sidecar" }}{{ fail "plimsoll.sidecar.container needs mode: sidecar" }}{{ end }}
{{- include "plimsoll.container" . }}
{{- end }}

{{- define "plimsoll.sidecar.volumes" -}}
{{ include "plimsoll.dataVolume" . }}
{{- include "plimsoll.readOnlyVolumes" . }}
{{- end }}

{{- define "plimsoll.sidecar.env" -}}
- {name: ANTHROPIC_BASE_URL, value: "http://127.0.0.1:8787"}
- {name: OPENAI_BASE_URL, value: "http://127.0.0.1:8787/v1"}
- {name: GOOGLE_GEMINI_BASE_URL, value: "http://127.0.0.1:8787"}
{{- end }}
