{{/* Metadata of a policy or its binding. Arguments: those of metadata. Argo CD applies wave 1 when the
earlier wave, which has the scheduler's Deployment, is healthy. */}}
{{- define "gpuslice.policyMetadata" -}}
{{- $wave := dict "argocd.argoproj.io/sync-wave" "1" -}}
{{- $annotations := merge $wave (.annotations | default dict) -}}
{{- include "gpuslice.metadata" (merge (dict "annotations" $annotations) .) -}}
{{- end }}

{{/* The start of a policy on pods and on objects with a pod's template. Arguments: root, name, the
operations on pods, and optionally resources other than pods, and the failurePolicy. A template may
add rules and constraints below it. */}}
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
        resources: [podtemplates, replicationcontrollers, deployments, replicasets, statefulsets,
          daemonsets, jobs, cronjobs]
{{- end }}

{{/* A policy's binding. Arguments: those of metadata, action, and optionally further fields of the spec.
The component is the policy's name. */}}
{{- define "gpuslice.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
{{ include "gpuslice.policyMetadata" . }}
spec:
  policyName: {{ .component | default .name }}
  validationActions: [{{ .action }}]
  {{- with .spec }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The bindings of a policy that can refuse a tenant's object. Arguments: the root, the policy's name, and
further fields of the bindings' spec. With action Auto there are two bindings: one with Audit, which the
extender later changes to Deny, and one with Warn, whose matchResources it then sets. So the chart must not
set these: server-side apply would fail. A rollback by server-side apply keeps Deny beside the chart's
action. Deny with Audit is valid, Deny with Warn is not. */}}
{{- define "gpuslice.tenantBindings" -}}
{{- $policy := index . 1 -}}
{{- $action := (first .).Values.admission.action -}}
{{- /* Only the extender changes Auto to Deny. */ -}}
{{- if and (eq $action "Auto") (eq (first .).Values.frontEnd "claims") (not (include "gpuslice.scheduler" (first .))) }}{{ $action = "Deny" }}{{ end -}}
{{- $kind := "ValidatingAdmissionPolicyBinding" -}}
{{- $live := lookup "admissionregistration.k8s.io/v1" $kind "" $policy -}}
{{- $denies := has "Deny" (dig "spec" "validationActions" list $live) -}}
{{- $binding := dict "root" (first .) "component" $policy "spec" (index . 2) -}}
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

{{/* The names of all policies on tenants' objects and of their bindings, including dialects that are off. */}}
{{- define "gpuslice.tenantPolicies" -}}
{{- $names := list -}}
{{- range list "allocations" "claims" "dialects" "environment" "hami" "kai" "queues" "quotas" "requests"
  "scheduler-names" "volcano" -}}
{{- $names = concat $names (list (printf "gpuslice-%s" .) (printf "gpuslice-%s-warn" .)) -}}
{{- end -}}
{{- join ", " $names -}}
{{- end }}

{{/* CEL: the pod, or the pod's template in a workload. Argument: object or oldObject. */}}
{{- define "gpuslice.template" -}}
request.kind.kind == 'Pod' ? dyn({{ . }})
: request.kind.kind == 'PodTemplate' ? dyn({{ . }}).?template.orValue({})
: request.kind.kind == 'CronJob' ? dyn({{ . }}).spec.jobTemplate.spec.?template.orValue({})
: dyn({{ . }}).spec.?template.orValue({})
{{- end }}

{{/* CEL: the pod or template before the request; empty in a creation. */}}
{{- define "gpuslice.oldTemplate" -}}
oldObject == null ? dyn({})
: {{ include "gpuslice.template" "oldObject" }}
{{- end }}

{{/* CEL: a list of one pair: the template after the request, and the template before it. */}}
{{- define "gpuslice.change" -}}
[[{{ include "gpuslice.template" "object" }},
{{ include "gpuslice.oldTemplate" . }}]]
{{- end }}

{{/* The variables template, annotations and containers. The latter includes init containers. */}}
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

{{/* CEL: whether a pod or template requests a share. Arguments: its variable, the dialects, and whether
earlier names of resources count. Annotations request nothing of default-scheduler. */}}
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
{{- $own := printf "!(%s.?spec.?schedulerName.orValue('') in ['', 'default-scheduler'])\n&& " $pod -}}
{{- $by = append $by (printf "%s%s.?metadata.?annotations.orValue({}).exists(k, %s)" $own $pod (join "\n|| " $keys)) -}}
{{- end -}}
{{- end -}}
{{- with $resources -}}
{{- $by = append $by (printf "(%s.?spec.?initContainers.orValue([]) + %s.?spec.?containers.orValue([])).exists(c,\n['limits', 'requests'].exists(kind, c.?resources[?kind].orValue({}).exists(n, n in [\n'%s']\n&& sign(quantity(c.resources[kind][n])) != 0)))" $pod $pod (join "',\n'" .)) -}}
{{- end -}}
({{ join "\n|| " $by }})
{{- end }}

{{/* CEL: the quantity `text` as an integer. If isInteger is false, the quantity is a whole number with
a binary fraction (1.5Gi), or too large. */}}
{{- define "gpuslice.integer" -}}
quantity(text).isInteger() ? quantity(text).asInteger()
: [quantity(text).asApproximateFloat()].map(f, f > 9.2e18 ? 9223372036854775807 : int(f))[0]
{{- end }}

{{/* The variables amounts and requested: what each container requests by Koordinator's names, as it is
written, and with the number of GPUs over which the amounts are divided. */}}
{{- define "gpuslice.requestVariables" -}}
# Each container's requests. Zero means not requested. A request outranks a limit.
- name: amounts
  expression: >-
    variables.containers.map(c, [['koordinator.sh/gpu', 'koordinator.sh/gpu-core',
    'koordinator.sh/gpu-memory', 'koordinator.sh/gpu-memory-ratio', 'koordinator.sh/gpu.shared']
    .map(n, c.?resources.?requests[?n].or(c.?resources.?limits[?n]).orValue('0'))
    .map(text,
    {{- include "gpuslice.integer" . | nindent 4 }})]
    .map(n, {'name': dyn(c.name), 'owner': dyn('container ' + c.name + ': '), 'gpu': dyn(n[0]), 'core': dyn(n[1]),
    'memory': dyn(n[2]), 'ratio': dyn(n[3]), 'shared': dyn(n[4])})[0])
    .filter(a, a.gpu > 0 || a.core > 0 || a.memory > 0 || a.ratio > 0 || a.shared > 0)
- name: requested
  expression: >-
    variables.amounts.map(a, {'name': a.name, 'owner': a.owner, 'gpu': a.gpu, 'core': a.core, 'memory': a.memory,
    'ratio': a.ratio, 'even': dyn(a.shared > 0), 'gpus': a.shared > 0 ? a.shared
    : [a.gpu > 0 ? a.gpu : a.ratio > 0 ? a.ratio : a.core].map(percent,
    percent > 100 && percent % 100 == 0 ? percent / 100 : dyn(1))[0]})
{{- end }}

{{/* The allowed amounts of memory in MiB, for a refusal. */}}
{{- define "gpuslice.mib" }}128 to 268435456 MiB, a number without a unit{{ end }}

{{/* CEL, behind a list of resources, each with its largest amount and the allowed values for a refusal:
the amounts that container c requests of these resources, -1 for an absent one. An amount in MiB that
has a unit of bytes (8Gi) was meant in bytes, and one below 128 has a wrong unit. */}}
{{- define "gpuslice.amounts" -}}
.map(r, [c.?resources.?limits[?r[0]].or(c.?resources.?requests[?r[0]]).orValue('-1')]
.map(text, {'name': dyn(r[0]), 'owner': dyn('container ' + c.name + ': '),
'is_in_bytes': dyn(r[2].contains('MiB') && text.endsWith('i')),
'least': dyn(r[2].contains('MiB') ? 128 : 1),
'field': dyn(r[0] + ': invalid value ' + text + ': must be '), 'allowed': dyn(r[2]),
'most': dyn(int(r[1])), 'amount': dyn({{ include "gpuslice.integer" . }})})[0])
{{- end }}

{{/* CEL: a pair for each container with a resource name that no node offers: a text for the refusal, and
the name. It is misspelt, or an old name that Koordinator's scheduler rewrites. */}}
{{- define "gpuslice.misnamed" -}}
variables.containers.map(c, ['limits', 'requests'].map(kind,
c.?resources[?kind].orValue({}).filter(n, (n.lowerAscii().startsWith('koordinator.sh/gpu')
|| n.lowerAscii().startsWith('kubernetes.io/gpu') || n.startsWith('aliyun.com/gpu-')) && !(n in ['koordinator.sh/gpu',
'koordinator.sh/gpu-core', 'koordinator.sh/gpu-memory', 'koordinator.sh/gpu-memory-ratio',
'koordinator.sh/gpu.shared']))
.map(n, ['container ' + c.name + ': resource name: invalid value ' + n, n]))
.filter(found, found.size() > 0).map(found, found[0]))
.filter(found, found.size() > 0).map(found, found[0])
{{- end }}

{{/* CEL: refusals of annotations that select MIG or MPS. Argument: their names. */}}
{{- define "gpuslice.modes" -}}
['{{ join "', '" . }}'].filter(k, variables.annotations[?k].orValue('hami-core') != 'hami-core')
.map(k, 'metadata.annotations[' + k + "]: invalid value '" + variables.annotations[k]
+ "': must be hami-core, as gpuslice shares GPUs without MIG and MPS")
{{- end }}

{{/* The validations of schedulerName and nodeName. Arguments: the root, and the two expressions. */}}
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

{{/* HAMi's entry in files/dialects.yaml, as JSON; an empty object if the dialect is off. */}}
{{- define "gpuslice.hami" -}}
{{- $found := dict -}}
{{- range include "gpuslice.dialects" . | fromJsonArray }}{{ if eq .name "hami" }}{{ $found = . }}{{ end }}{{ end -}}
{{- toJson $found -}}
{{- end }}

{{/* The version of the cluster's MutatingAdmissionPolicies, which set the schedulerName of HAMi's pods.
Empty without them. Kubernetes 1.34 and 1.35 have v1beta1 where an administrator turned it on. */}}
{{- define "gpuslice.mutates" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- if .Capabilities.APIVersions.Has (print $group "/v1/MutatingAdmissionPolicy") }}v1
{{- else if .Capabilities.APIVersions.Has (print $group "/v1beta1/MutatingAdmissionPolicy") }}v1beta1{{ end -}}
{{- end }}

{{/* A part of matchConstraints: it excludes the objects that HAMi's own webhook ignores. */}}
{{- define "gpuslice.notIgnoredByHami" -}}
{{- range list "namespaceSelector" "objectSelector" }}
{{ . }}:
  matchExpressions:
    - {key: hami.io/webhook, operator: NotIn, values: [ignore]}
{{- end }}
{{- end }}
