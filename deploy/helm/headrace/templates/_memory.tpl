{{/* Arithmetic of memory, in bytes. The same as headrace.wire.slot_format, which tests/chart holds it against. */}}

{{/* Bytes of a Kubernetes quantity: "512Mi", "2G", "1048576", or a number. Whole ones; fails otherwise. */}}
{{- define "headrace.bytes" -}}
{{- $text := toString . -}}
{{- if kindIs "float64" . -}}{{- $text = int64 . | toString -}}{{- end -}}
{{- if not (regexMatch "^[0-9]+(k|M|G|T|Ki|Mi|Gi|Ti)?$" $text) -}}
{{- fail (printf "%q is no amount of memory: give a whole number with Ki, Mi, Gi, k, M or G, such as 512Mi" $text) -}}
{{- end -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mul (regexFind "^[0-9]+" $text | int64) (get $units (regexFind "[A-Za-z]*$" $text) | int64) -}}
{{- end -}}

{{- define "headrace.mebibytes" -}}
{{- div (add . 1048575) 1048576 -}}Mi
{{- end -}}

{{/* Bytes of one slot: a header page, the pixels, the batch's names and labels; whole pages. */}}
{{- define "headrace.slotBytes" -}}
{{- $jobs := .Values.jobs -}}
{{- $pixels := mul $jobs.batchSize $jobs.height $jobs.width 3 $jobs.bytesPerValue -}}
{{- $sample := add 18 (mul 2 (add $jobs.maxKeyBytes 8)) (max 8 $jobs.labelWidth) (add $jobs.maxLabelBytes 8) -}}
{{- $meta := add 4096 (mul $jobs.batchSize $sample) -}}
{{- $bytes := add 4096 (mul (div (add $pixels 63) 64) 64) $meta -}}
{{- mul (div (add $bytes 4095) 4096) 4096 -}}
{{- end -}}

{{/* Bound on the ready batches of a rank: --max-rank-bytes, which bounds the window. */}}
{{- define "headrace.rankBytes" -}}
{{- mul .Values.jobs.slots (include "headrace.slotBytes" .) -}}
{{- end -}}

{{/* What it takes before any batch. Takes (dict "class" class). */}}
{{- define "headrace.baseMemory" -}}
{{- if .class.memory.base -}}
{{- .class.memory.base -}}
{{- else if or (has .class.engine (include "headrace.gpuEngines" . | fromYamlArray)) (and (eq .class.engine "auto") (or .class.gpus .class.runtimeClassName)) -}}
3Gi
{{- else -}}
{{- ternary "1Gi" "512Mi" (has .class.engine (list "dali" "nvimgcodec")) -}}
{{- end -}}
{{- end -}}

{{/* What a worker needs. Takes (dict "root" $ "class" class). */}}
{{- define "headrace.neededBytes" -}}
{{- $jobs := .root.Values.jobs -}}
{{- $slabs := mul $jobs.ranksPerWorker (include "headrace.rankBytes" .root) -}}
{{- $readAhead := mul $jobs.atOnce (include "headrace.bytes" .class.memory.readAhead) -}}
{{- $decoding := mul (add .class.cpu 1) $jobs.maxPixels 3 -}}{{/* a substitute is decoded beside the threads */}}
{{- add $slabs $readAhead $decoding (include "headrace.bytes" (include "headrace.baseMemory" .)) -}}
{{- end -}}

{{/* The memory limit of a worker: what is needed, or more. Takes (dict "root" $ "name" name "class" class). */}}
{{- define "headrace.memoryLimit" -}}
{{- $needed := include "headrace.neededBytes" . | int64 -}}
{{- if .class.memory.limit -}}
{{- $given := include "headrace.bytes" .class.memory.limit | int64 -}}
{{- if lt $given $needed -}}
{{- $jobs := .root.Values.jobs -}}
{{- fail (printf "workers.%s.memory.limit is %v, and its work needs %s: %d ranks x %d slots x %s, read-ahead %v x %d jobs, %d images of %d pixels, base %v. Raise the limit, or lower jobs.ranksPerWorker, jobs.slots, jobs.batchSize, jobs.maxPixels or memory.readAhead." .name .class.memory.limit (include "headrace.mebibytes" $needed) (int $jobs.ranksPerWorker) (int $jobs.slots) (include "headrace.mebibytes" (include "headrace.slotBytes" .root)) .class.memory.readAhead (int $jobs.atOnce) (add .class.cpu 1 | int) (int64 $jobs.maxPixels) (include "headrace.baseMemory" .)) -}}
{{- end -}}
{{- .class.memory.limit -}}
{{- else -}}
{{- include "headrace.mebibytes" $needed -}}
{{- end -}}
{{- end -}}
