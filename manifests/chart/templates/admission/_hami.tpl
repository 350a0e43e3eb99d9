{{/* HAMi's dialect of files/dialects.yaml, as JSON; an empty object where it is off. */}}
{{- define "gpuslice.hami" -}}
{{- $found := dict -}}
{{- range include "gpuslice.dialects" . | fromJsonArray }}{{ if eq .name "hami" }}{{ $found = . }}{{ end }}{{ end -}}
{{- toJson $found -}}
{{- end }}

{{/* Whether the cluster has MutatingAdmissionPolicies, to set the schedulerName of HAMi's pods. */}}
{{- define "gpuslice.mutates" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}true{{ end -}}
{{- end }}

{{/* Of matchConstraints: what HAMi's own webhook leaves out. */}}
{{- define "gpuslice.notIgnoredByHami" -}}
{{- range list "namespaceSelector" "objectSelector" }}
{{ . }}:
  matchExpressions:
    - {key: hami.io/webhook, operator: NotIn, values: [ignore]}
{{- end }}
{{- end }}
