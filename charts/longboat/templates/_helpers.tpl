{{- define "longboat.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* As JSON. With --reuse-values, the values of a chart that didn't have it lack it. */}}
{{- define "longboat.dnsPeers" -}}
{{- $kubeSystem := dict "matchLabels" (dict "kubernetes.io/metadata.name" "kube-system") }}
{{- default (list (dict "namespaceSelector" $kubeSystem)) .Values.dnsPeers | toJson }}
{{- end }}

{{- /* The defaults of values.yaml again: with --reuse-values, the values of an older chart lack both. */}}
{{- define "longboat.podSecurityContext" -}}
{{- $ids := dict "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001 }}
{{- $default := merge (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) $ids }}
{{- hasKey .Values "podSecurityContext" | ternary .Values.podSecurityContext $default | toYaml }}
{{- end }}

{{- define "longboat.securityContext" -}}
{{- $default := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
{{- hasKey .Values "securityContext" | ternary .Values.securityContext $default | toYaml }}
{{- end }}

{{- define "longboat.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "longboat.labels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "longboat.serviceAccountName" -}}
{{- default (include "longboat.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- /* The usernames of all operators' accounts, as a CEL list for the admission policies. */}}
{{- define "longboat.operators" -}}
{{- $own := printf "'system:serviceaccount:%s:%s'" .Release.Namespace (include "longboat.serviceAccountName" .) }}
{{- $operators := list $own }}
{{- range .Values.policies.otherOperators }}
{{- $operators = append $operators (printf "'system:serviceaccount:%s'" .) }}
{{- end }}
{{- printf "[%s]" (join ", " $operators) }}
{{- end }}

{{- /* What the operator may do wherever it serves jobs. Secrets: never read. */}}
{{- define "longboat.rules" -}}
- apiGroups: [longboat.dev]
  resources: [rljobs]
  verbs: [get, list, watch, delete]
- apiGroups: [longboat.dev]
  resources: [rljobs/status]
  verbs: [patch]
# Owner references that block the owner's deletion need it where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [longboat.dev]
  resources: [rljobs/finalizers]
  verbs: [update]
- apiGroups: [longboat.dev]
  resources: [rlruntimes]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods/resize]
  verbs: [patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims, serviceaccounts, services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- if .Values.policies.install }}
# The policy longboat-operator-deletes limits these to objects whose controller is an RLJob; without it they aren't granted.
- apiGroups: [""]
  resources: [secrets]
  verbs: [delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [delete]
{{- end }}
# Listed only for a pod whose containers don't start: nothing else says why a volume can't be mounted.
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
# Budgets keep driver and trainer pods from being evicted before the driver has saved.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# A driver's Role grants get and watch of its job and patch of its status: no more than is granted here.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
{{- end }}
