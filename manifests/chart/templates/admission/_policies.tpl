{{/* Metadata of a policy or its binding. Arguments: as metadata's. Argo CD applies a later wave
once the earlier one, with the scheduler's Deployment, is healthy. */}}
{{- define "gpuslice.policyMetadata" -}}
{{- $wave := dict "argocd.argoproj.io/sync-wave" "1" -}}
{{- $annotations := merge $wave (.annotations | default dict) -}}
{{- include "gpuslice.metadata" (merge (dict "annotations" $annotations) .) -}}
{{- end }}

{{/* The head of a policy on pods, and on the objects that have a pod's template. Arguments: root,
name, the operations on pods, and optionally other resources than pods, and the failurePolicy. More
of its rules and constraints may follow. */}}
{{- define "gpuslice.policy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
{{ include "gpuslice.policyMetadata" . }}
spec:
  failurePolicy: {{ .failurePolicy | default "Fail" }}
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [{{ .operations }}]
        resources: [{{ .resources | default "pods" }}]
      - apiGroups: ["", apps, batch]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [replicationcontrollers, deployments, replicasets, statefulsets, daemonsets,
          jobs, cronjobs]
{{- end }}

{{/* A policy's binding. Arguments: as metadata's, action, and optionally what else it matches. The
component is the policy's name. */}}
{{- define "gpuslice.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
{{ include "gpuslice.policyMetadata" . }}
spec:
  policyName: {{ .component | default .name }}
  validationActions: [{{ .action }}]
  {{- with .matchResources }}
  matchResources: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* The bindings of a policy that can refuse a tenant's object. Arguments: the root, the policy's
name, and optionally what else the binding matches. Auto: the scheduler changes Audit to Deny once it
is available. With server-side apply, validationActions is a set with several owners: a rollback to
Audit keeps Deny, where Warn beside Deny would be invalid. So another binding warns until then. */}}
{{- define "gpuslice.tenantBindings" -}}
{{- $policy := index . 1 -}}
{{- $action := (first .).Values.admission.action -}}
{{- $kind := "ValidatingAdmissionPolicyBinding" -}}
{{- $live := lookup "admissionregistration.k8s.io/v1" $kind "" $policy -}}
{{- $denies := has "Deny" (dig "spec" "validationActions" list $live) -}}
{{- $binding := dict "root" (first .) "component" $policy "matchResources" (index . 2) -}}
{{- if ne $action "Warn" }}
{{- $labels := eq $action "Auto" | ternary (dict "gpuslice.io/admission" "auto") dict }}
---
{{ include "gpuslice.binding" (merge (dict "name" $policy "labels" $labels
  "action" (or $denies (eq $action "Deny") | ternary "Deny" "Audit")) $binding) }}
{{- end }}
{{- if or (eq $action "Warn") (and (eq $action "Auto") (not $denies)) }}
---
{{- $name := print $policy "-warn" }}
{{ include "gpuslice.binding" (merge (dict "name" $name "action" "Warn") $binding) }}
{{- end }}
{{- end }}

{{/* Names of all policies on tenants' objects, of dialects that are off too, and of their
bindings. */}}
{{- define "gpuslice.tenantPolicies" -}}
{{- $names := list -}}
{{- range list "allocations" "dialects" "environment" "hami" "kai" "requests" "scheduler-names"
  "volcano" -}}
{{- $names = concat $names (list (printf "gpuslice-%s" .) (printf "gpuslice-%s-warn" .)) -}}
{{- end -}}
{{- join ", " $names -}}
{{- end }}

{{/* CEL: the pod, or the template of one in a workload. Argument: object or oldObject. */}}
{{- define "gpuslice.template" -}}
request.kind.kind == 'Pod' ? dyn({{ . }})
: request.kind.kind == 'CronJob' ? dyn({{ . }}).spec.jobTemplate.spec.?template.orValue({})
: dyn({{ . }}).spec.?template.orValue({})
{{- end }}

{{/* The same before the request; empty in a creation. */}}
{{- define "gpuslice.oldTemplate" -}}
oldObject == null ? dyn({})
: {{ include "gpuslice.template" "oldObject" }}
{{- end }}

{{/* CEL: a list of one pair, the template and the old one. */}}
{{- define "gpuslice.change" -}}
[[{{ include "gpuslice.template" "object" }},
{{ include "gpuslice.oldTemplate" . }}]]
{{- end }}

{{/* The variables template, annotations, and containers with the init containers. */}}
{{- define "gpuslice.podVariables" -}}
- name: template
  expression: >-
    {{- include "gpuslice.template" "object" | nindent 4 }}
- name: annotations
  expression: variables.template.?metadata.?annotations.orValue({})
- name: containers
  expression: >-
    variables.template.?spec.?initContainers.orValue([])
    + variables.template.?spec.?containers.orValue([])
{{- end }}

{{/* CEL: whether a pod, or a template of one, requests a share. Arguments: its variable, the dialects,
and whether by resources' earlier names too. Annotations request one only in pods of the
dialect's own scheduler, if it has one. */}}
{{- define "gpuslice.requestsShare" -}}
{{- $pod := index . 0 -}}
{{- $resources := list -}}
{{- $by := list -}}
{{- range $dialect := index . 1 -}}
{{- $resources = concat $resources .resources -}}
{{- if index $ 2 }}{{ $resources = concat $resources .deprecatedResources }}{{ end -}}
{{- with .annotations -}}
{{- $keys := list (printf "k in ['%s']" (join "', '" .)) -}}
{{- range $dialect.containerAnnotation.suffixes -}}
{{- $keys = append $keys (printf "k.startsWith('%s') && k.endsWith('%s')" $dialect.containerAnnotation.prefix .) -}}
{{- end -}}
{{- $own := printf "%s.?spec.?schedulerName.orValue('') == '%s'\n&& " $pod $dialect.schedulerName -}}
{{- $by = append $by (printf "%s%s.?metadata.?annotations.orValue({}).exists(k, %s)" (empty $dialect.schedulerName | ternary "" $own) $pod (join "\n|| " $keys)) -}}
{{- end -}}
{{- end -}}
{{- with $resources -}}
{{- $by = append $by (printf "(%s.?spec.?initContainers.orValue([]) + %s.?spec.?containers.orValue([])).exists(c,\n['limits', 'requests'].exists(kind, c.?resources[?kind].orValue({}).exists(n, n in [\n'%s']\n&& sign(quantity(c.resources[kind][n])) != 0)))" $pod $pod (join "',\n'" .)) -}}
{{- end -}}
({{ join "\n|| " $by }})
{{- end }}

{{/* CEL: the quantity `text` as an integer. One that CEL does not take for an integer is a whole
binary fraction (1.5Gi), or too large. */}}
{{- define "gpuslice.integer" -}}
quantity(text).isInteger() ? quantity(text).asInteger()
: [quantity(text).asApproximateFloat()].map(f, f > 9.2e18 ? 9223372036854775807 : int(f))[0]
{{- end }}

{{/* CEL: after a list of resources, each with its largest amount and what a refusal allows: what
the container c requests of them, -1 for an absent one. An amount of MiB with a unit of bytes (8Gi)
was meant as bytes. */}}
{{- define "gpuslice.amounts" -}}
.map(r, [c.?resources.?limits[?r[0]].or(c.?resources.?requests[?r[0]]).orValue('-1')]
.map(text, {'name': dyn(r[0]), 'owner': dyn('container ' + c.name + ': '),
'is_in_bytes': dyn(r[2].contains('MiB') && text.endsWith('i')),
'field': dyn(r[0] + ': invalid value ' + text + ': must be '), 'allowed': dyn(r[2]),
'most': dyn(int(r[1])), 'amount': dyn({{ include "gpuslice.integer" . }})})[0])
{{- end }}

{{/* CEL: by container, a resource name of which no node has a resource, after a text about it:
misspelt, or an old name, which Koordinator's scheduler rewrites and kube-scheduler does not. */}}
{{- define "gpuslice.misnamed" -}}
variables.containers.map(c, ['limits', 'requests'].map(kind,
c.?resources[?kind].orValue({}).filter(n, (n.lowerAscii().startsWith('koordinator.sh/gpu')
|| n.lowerAscii().startsWith('kubernetes.io/gpu')) && !(n in ['koordinator.sh/gpu',
'koordinator.sh/gpu-core', 'koordinator.sh/gpu-memory', 'koordinator.sh/gpu-memory-ratio',
'koordinator.sh/gpu.shared']))
.map(n, ['container ' + c.name + ': resource name: invalid value ' + n, n]))
.filter(found, found.size() > 0).map(found, found[0]))
.filter(found, found.size() > 0).map(found, found[0])
{{- end }}

{{/* The validations of the variables scheduler and node. Arguments: the root, and their
expressions. */}}
{{- define "gpuslice.placementValidations" -}}
{{- $served := join " or " (include "gpuslice.servedNames" (first .) | fromJsonArray) -}}
- expression: {{ quote (index . 1) }}
  messageExpression: >-
    "schedulerName: invalid value '" + variables.scheduler + "': must be {{ $served }}
    in a pod that requests a share of a GPU; default-scheduler would start it without a GPU"
- expression: {{ quote (index . 2) }}
  messageExpression: >-
    "nodeName: invalid value '" + variables.node + "': must be empty in a pod that requests a
    share of a GPU, so that the scheduler allocates it; use a nodeSelector or an affinity instead"
{{- end }}

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
