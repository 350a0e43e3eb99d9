{{/* Labels of an object. Arguments: the root, and the name of the component. */}}
{{- define "gpuslice.labels" -}}
{{- $root := first . -}}
app.kubernetes.io/part-of: gpuslice
app.kubernetes.io/name: {{ last . }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of a pod. Arguments: the root, and the name of the component. */}}
{{- define "gpuslice.podLabels" -}}
{{- $root := first . -}}
app.kubernetes.io/part-of: gpuslice
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/name: {{ last . }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* An object's metadata. A namespace may be added below it. Arguments: root, name, and optionally
component (for the labels), labels, annotations, and hook (Helm's event, and the weight). */}}
{{- define "gpuslice.metadata" -}}
metadata:
  name: {{ .name }}
  labels: {{- include "gpuslice.labels" (list .root (.component | default .name)) | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .hook }}
  annotations:
    helm.sh/hook: {{ first . }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
    helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
    helm.sh/hook-weight: {{ last . | quote }}
  {{- end }}
{{- end }}

{{/* An account, and bindings to roles of the same name. Arguments: those of metadata, and the roles' kinds. */}}
{{- define "gpuslice.account" -}}
apiVersion: v1
kind: ServiceAccount
{{ include "gpuslice.metadata" . }}
  namespace: gpuslice-system
{{- range .roles | default (list "ClusterRole" "Role") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ . }}Binding
{{ include "gpuslice.metadata" $ }}
  {{- if eq . "Role" }}
  namespace: gpuslice-system
  {{- end }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ . }}, name: {{ $.name }}}
subjects:
  - {kind: ServiceAccount, name: {{ $.name }}, namespace: gpuslice-system}
{{- end }}
{{- end }}

{{/* The security contexts of a pod, and of its containers, that need no rights on the node. */}}
{{- define "gpuslice.unprivilegedPod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "gpuslice.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The spec of a pod that runs a command of the scheduler's image. Arguments: root, account, container
(its name), command, memory (the request and the limit), and optionally restarts (default: once), priority. */}}
{{- define "gpuslice.commandPod" -}}
serviceAccountName: {{ .account }}
{{- include "gpuslice.nodes" (list .root.Values.scheduler 0) }}
restartPolicy: {{ .restarts | default "Never" }}
{{- with .priority }}
priorityClassName: {{ . }}
{{- end }}
{{ include "gpuslice.pullSecrets" .root }}
{{ include "gpuslice.unprivilegedPod" . }}
containers:
  - name: {{ .container }}
    image: {{ include "gpuslice.image" (list .root .root.Values.images.scheduler) }}
    imagePullPolicy: {{ .root.Values.images.scheduler.pullPolicy }}
    terminationMessagePolicy: FallbackToLogsOnError
    command: {{ toJson .command }}
    {{- include "gpuslice.env" (list .root.Values.scheduler 4) }}
    resources:
      requests: {cpu: 10m, memory: {{ first .memory }}}
      limits: {memory: {{ last .memory }}}
    {{- include "gpuslice.confined" . | nindent 4 }}
{{- end }}

{{/* A Job with a pod of gpuslice.commandPod. Arguments: those of metadata and commandPod, and optionally
label (the pod's app.kubernetes.io/name) and retries. */}}
{{- define "gpuslice.job" -}}
apiVersion: batch/v1
kind: Job
{{ include "gpuslice.metadata" . }}
  namespace: gpuslice-system
spec:
  backoffLimit: {{ .retries | default 0 }}
  template:
    metadata:
      labels: {{- include "gpuslice.podLabels" (list .root (.label | default .name)) | nindent 8 }}
    spec: {{- include "gpuslice.commandPod" . | nindent 6 }}
{{- end }}

{{/* The entries of files/dialects.yaml that are on, as JSON. A switch is the path of a chart's value. */}}
{{- define "gpuslice.dialects" -}}
{{- $on := list -}}
{{- range (.Files.Get "files/dialects.yaml" | fromYaml).dialects -}}
{{- $value := empty .switch | ternary true $.Values -}}
{{- range splitList "." .switch | compact -}}
{{- if kindIs "map" $value }}{{ $value = get $value . }}{{ end -}}
{{- end -}}
{{- if $value }}{{ $on = append $on . }}{{ end -}}
{{- end -}}
{{- toJson $on -}}
{{- end }}

{{/* Whether the scheduler is installed. Without other dialects and queues, nodes that serve claims need none. */}}
{{- define "gpuslice.scheduler" -}}
{{- $others := or .Values.queues.enabled (include "gpuslice.dialectsOption" .) -}}
{{- if and .Values.scheduler.enabled (or (eq .Values.frontEnd "annotations") $others) }}true{{ end -}}
{{- end }}

{{/* Whether a node may serve claims. Before Kubernetes 1.36, capacities of devices are an alpha feature. */}}
{{- define "gpuslice.canClaim" -}}
{{- if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end }}

{{/* The option --dialects of scheduler and agent, if another dialect than Koordinator's is on. */}}
{{- define "gpuslice.dialectsOption" -}}
{{- $on := list -}}
{{- range include "gpuslice.dialects" . | fromJsonArray }}{{ $on = append $on .name }}{{ end -}}
{{- if gt (len $on) 1 }}- --dialects={{ join "," $on }}{{ end -}}
{{- end }}

{{/* Resources that kube-scheduler ignores, because the extender checks them, as JSON. Nodes report some, for
autoscalers. If their dialect is off, its refusal names the switch. With HAMi off, device plugins offer
nvidia.com/gpu. Only queues count gpuslice.io/gpu-milli, and pods keep it if queues are turned off. */}}
{{- define "gpuslice.ignoredResources" -}}
{{- $ignored := list -}}
{{- range (.Files.Get "files/dialects.yaml" | fromYaml).dialects -}}
{{- if .switch }}{{ $ignored = concat $ignored (without .resources "nvidia.com/gpu") }}{{ end -}}
{{- end -}}
{{- range include "gpuslice.dialects" . | fromJsonArray -}}
{{- if .switch }}{{ $ignored = concat $ignored .resources }}{{ end -}}
{{- end -}}
{{- append $ignored "gpuslice.io/gpu-milli" | uniq | toJson -}}
{{- end }}

{{/* The served schedulerNames, as JSON: those in the values, and those of dialects that are on. */}}
{{- define "gpuslice.servedNames" -}}
{{- $names := .Values.schedulerNames -}}
{{- range include "gpuslice.dialects" . | fromJsonArray }}{{ $names = append $names .schedulerName }}{{ end -}}
{{- $names | compact | uniq | toJson -}}
{{- end }}

{{/* The served schedulerNames, as the elements of a list in CEL. */}}
{{- define "gpuslice.served" -}}
'{{ join "', '" (include "gpuslice.servedNames" . | fromJsonArray) }}'
{{- end }}

{{/* The schedulerNames whose pods get claims for Koordinator's names, as the elements of a list in CEL: the
stock kube-scheduler's, and where the extender is not installed, those that it would serve. */}}
{{- define "gpuslice.claimed" -}}
'', 'default-scheduler'{{ if not (include "gpuslice.scheduler" .) }}, {{ include "gpuslice.served" . }}{{ end }}
{{- end }}

{{/* The schedulerNames whose pods' requests by Koordinator's names are judged. */}}
{{- define "gpuslice.judged" -}}
{{ if eq .Values.frontEnd "claims" }}'', 'default-scheduler', {{ end }}{{ include "gpuslice.served" . }}
{{- end }}

{{/* An image of gpuslice. Arguments: the root, and the image's value. */}}
{{- define "gpuslice.image" -}}
{{- $root := first . -}}
{{- $image := index . 1 -}}
{{- $registry := coalesce $root.Values.images.registry $root.Values.global.registry -}}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* The tag of kube-scheduler's image: the cluster's version without a vendor's suffix, because
kube-scheduler must not be newer than the API server, and at most one minor version older. */}}
{{- define "gpuslice.kubeSchedulerTag" -}}
{{- .Values.images.kubeScheduler.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) -}}
{{- end }}

{{/* GKE admits pods of the system priority classes outside kube-system only under a ResourceQuota. */}}
{{- define "gpuslice.resourceQuota" -}}
{{- $wanted := .Values.namespace.resourceQuota -}}
{{- if or (eq $wanted "Always") (and (eq $wanted "Auto") (contains "-gke." .Capabilities.KubeVersion.Version)) }}true{{ end -}}
{{- end }}

{{/* Refuses values by rules that values.schema.json cannot express. */}}
{{- define "gpuslice.validate" -}}
{{- if ne .Release.Namespace "gpuslice-system" }}
{{- fail (printf "namespace: invalid value %s: must be gpuslice-system, which the policies and the programs name; use --namespace gpuslice-system" .Release.Namespace) }}
{{- end }}
{{- if and .Values.monitoring.podMonitor.enabled .Values.agent.enabled (has "agent" .Values.monitoring.podMonitor.components) }}
{{- range $pool := .Values.agent.nodePools | default (list dict) }}
{{- $address := dig "agent" "http" "address" $.Values.agent.http.address $pool }}
{{- if hasPrefix "127." $address }}
{{- fail (printf "agent.http.address: invalid value %s: must be reachable by Prometheus while monitoring.podMonitor.components has agent; use 0.0.0.0" $address) }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.agent.enabled }}
{{- range $pool := .Values.agent.nodePools | default (list dict) }}
{{- $whole := $pool.wholeGpus | default $.Values.wholeGpus }}
{{- if and $.Values.dialects.hami.enabled (ne $whole "off") }}
{{- fail (printf "wholeGpus: invalid value %s: must be off while dialects.hami.enabled is true, as its pods request nvidia.com/gpu of the scheduler; change one of the two" $whole) }}
{{- end }}
{{- if and (or $.Values.claims.nvidiaGpu (eq $.Values.frontEnd "claims")) (ne $whole "off") }}
{{- fail (printf "wholeGpus: invalid value %s: must be off with frontEnd claims and with claims.nvidiaGpu, as no device plugin may offer the GPUs of claims" $whole) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq .Values.frontEnd "claims") (not (include "gpuslice.canClaim" .)) }}
{{- fail (printf "frontEnd: invalid value claims: must be annotations before Kubernetes 1.36, whose kube-scheduler is the first to share a device by capacity without alpha feature gates; this is %s" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and .Values.claims.nvidiaGpu (not (include "gpuslice.canClaim" .)) }}
{{- fail "claims.nvidiaGpu: invalid value true: must be false before Kubernetes 1.36" }}
{{- end }}
{{- if and .Values.queues.enabled (not (and .Values.admission.enabled (include "gpuslice.scheduler" .))) }}
{{- fail "queues.enabled: invalid value true: must be false without admission.enabled and scheduler.enabled" }}
{{- end }}
{{- $own := dict }}
{{- range without .Values.schedulerNames "gpuslice-scheduler" }}
{{- $_ := set $own . (list (printf "schedulerNames: invalid value %s" .) "omit the name") }}
{{- end }}
{{- range $dialect := include "gpuslice.dialects" . | fromJsonArray }}
{{- range .ownScheduler }}
{{- $_ := set $own . (list (printf "%s: invalid value true" $dialect.switch) "set it to false") }}
{{- end }}
{{- end }}
{{- if $own }}
{{- range (lookup "v1" "Pod" "" "").items }}
{{- if not (has (dig "status" "phase" "" .) (list "Succeeded" "Failed")) }}
{{- $pod := printf "%s/%s" .metadata.namespace .metadata.name }}
{{- $known := values (.metadata.labels | default dict) }}
{{- range .spec.containers }}
{{- $known = append $known (.image | regexFind "[^/]+$" | regexFind "^[^:@]+") }}
{{- $known = append $known (.image | regexFind "[^/]+/[^/]+$" | regexFind "^[^:@]+") }}
{{- end }}
{{- range $name, $texts := $own }}
{{- if has $name $known }}
{{- fail (printf "%s: must be served by one scheduler, and pod %s runs its own; stop that pod, or %s" (first $texts) $pod (last $texts)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The values for a pool of nodes, as JSON. Arguments: the root, and the pool. */}}
{{- define "gpuslice.poolValues" -}}
{{- $values := mergeOverwrite (deepCopy (first .).Values) (omit (last .) "name") -}}
{{- $agent := $values.agent -}}
{{- $selector := dig "agent" "nodeSelector" dict (last .) -}}
{{- $kais := $values.binder.resourceReservation.runtimeClassName -}}
{{- $_ := set $agent "nodeSelector" ($selector | default $agent.nodeSelector) -}}
{{- $_ := set $agent "runtimeClassName" ($agent.runtimeClassName | default $kais) -}}
{{- toJson $values -}}
{{- end }}

{{/* The priority and placement of a component's pods. Argument: the component's values. */}}
{{- define "gpuslice.placement" -}}
terminationGracePeriodSeconds: {{ .terminationGracePeriodSeconds }}
{{- range $name, $value := pick . "priorityClassName" "runtimeClassName" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with $value }}{{ dict $name . | toYaml | nindent 0 }}{{ end }}
{{- end }}
{{- end }}

{{/* A command's options. An empty value is left out, true has no value, a list repeats the option. */}}
{{- define "gpuslice.options" -}}
{{- range $option, $value := . }}
{{- range kindIs "slice" $value | ternary $value (list $value) }}
{{- with . }}
- {{ $option }}{{ if not (kindIs "bool" .) }}={{ . }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpuslice.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* A component's nodeSelector and tolerations. Arguments: the component's values, the indentation. */}}
{{- define "gpuslice.nodes" -}}
{{- range $name, $value := pick (first .) "nodeSelector" "tolerations" -}}
{{- with $value }}{{ dict $name . | toYaml | nindent (last $) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* A container's additional environment. Arguments: the component's values, and the indentation. */}}
{{- define "gpuslice.env" -}}
{{- with (first .).extraEnv }}{{ dict "env" . | toYaml | nindent (last $) }}{{ end -}}
{{- end }}

{{/* The labels of nodes with NVIDIA GPUs, as JSON: each key with its values. No values mean any value. */}}
{{- define "gpuslice.gpuLabels" -}}
{{- dict
  "nvidia.com/gpu.present" (list "true")
  "cloud.google.com/gke-accelerator" list
  "k8s.amazonaws.com/accelerator" list
  "eks.amazonaws.com/instance-gpu-manufacturer" (list "nvidia")
  "karpenter.k8s.aws/instance-gpu-manufacturer" (list "nvidia")
  "kubernetes.azure.com/accelerator" (list "nvidia")
  "feature.node.kubernetes.io/pci-10de.present" (list "true")
  "feature.node.kubernetes.io/pci-0300_10de.present" (list "true")
  "feature.node.kubernetes.io/pci-0302_10de.present" (list "true")
  | toJson -}}
{{- end }}

{{/* The labels of a node that GPU Operator pauses, as JSON: each label's component, and the pause's value.
The driver manager (k8s-driver-manager) sets the first label. The MIG manager (mig-parted,
pkg/mig/reconfigure) sets the others whose component is deployed. */}}
{{- define "gpuslice.pauses" -}}
{{- dict
  "container-toolkit" "paused-for-driver-upgrade"
  "client" "paused-for-mig-change"
  "dcgm" "paused-for-mig-change"
  "dcgm-exporter" "paused-for-mig-change"
  "gpu-feature-discovery" "paused-for-mig-change"
  "nvsm" "paused-for-mig-change"
  | toJson -}}
{{- end }}

{{/* The affinity of the agent and the distributor to nodes with a label of gpuslice.gpuLabels. The pods
leave a node that GPU Operator pauses, because a process that uses NVML keeps the driver loaded.
Arguments: the component's affinity, whose parts take precedence, and whether its pods leave paused nodes. */}}
{{- define "gpuslice.gpuNodes" -}}
{{- $pauses := list -}}
{{- range $component, $value := include "gpuslice.pauses" . | fromJson -}}
{{- $pauses = append $pauses (dict "key" (printf "nvidia.com/gpu.deploy.%s" $component) "operator" "NotIn" "values" (list $value)) -}}
{{- end -}}
{{- $terms := list -}}
{{- range $key, $values := include "gpuslice.gpuLabels" . | fromJson -}}
{{- $label := empty $values | ternary (dict "key" $key "operator" "Exists") (dict "key" $key "operator" "In" "values" $values) -}}
{{- $terms = append $terms (dict "matchExpressions" (last $ | ternary (prepend $pauses $label) (list $label))) -}}
{{- end -}}
{{- $nodes := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- merge (deepCopy (first .)) (dict "nodeAffinity" $nodes) | toJson -}}
{{- end }}

{{/* The mounts of pods on the nodes. The host's root is mounted as a whole, so that no other directory of
the host has to exist. Containers' files are mounted below /run/gpuslice, where the runtime sees them. */}}
{{- define "gpuslice.nodeMounts" -}}
- {name: run, mountPath: /run/gpuslice, mountPropagation: Bidirectional}
# HostToContainer shows later mounts: containers' file systems, a driver container's root.
- {name: host, mountPath: /host, mountPropagation: HostToContainer}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "gpuslice.nodeVolumes" -}}
- {name: run, hostPath: {path: /run/gpuslice, type: DirectoryOrCreate}}
- {name: host, hostPath: {path: /, type: Directory}}
- {name: tmp, emptyDir: {medium: Memory, sizeLimit: 16Mi}}
{{- end }}

{{/* Further elements of a list, from the values. Arguments: the elements, and the indentation. */}}
{{- define "gpuslice.extra" -}}
{{- with first . }}{{ toYaml . | nindent (last $) }}{{ end -}}
{{- end }}
