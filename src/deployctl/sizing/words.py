"""What the advice says, in English and Spanish."""

from __future__ import annotations

from typing import Literal

Lang = Literal["en", "es"]

LABELS: dict[str, dict[Lang, str]] = {
    "on": {"en": "on", "es": "en"},
    "good": {"en": "good", "es": "bien"},
    "too few users": {"en": "too few users", "es": "muy pocos usuarios"},
    "slow or impossible": {"en": "slow or impossible", "es": "lento o imposible"},
    "does not fit": {"en": "does not fit", "es": "no cabe"},
    "variant": {"en": "variant", "es": "variante"},
    "memory": {"en": "memory", "es": "memoria"},
    "speed": {"en": "speed", "es": "velocidad"},
    "users": {"en": "users", "es": "usuarios"},
    "cost": {"en": "cost", "es": "costo"},
    "hardware": {"en": "wants", "es": "pide"},
    "cpu": {"en": "a CPU", "es": "CPU"},
    "gpu": {"en": "a GPU", "es": "GPU"},
    "try": {"en": "try:", "es": "pruebe:"},
    "or": {"en": "or", "es": "o"},
    "parts": {"en": "Memory, part by part", "es": "La memoria, parte por parte"},
    "variants": {"en": "All variants on this plan", "es": "Todas las variantes en este plan"},
    "sources": {"en": "Where the figures come from", "es": "De dónde salen las cifras"},
    "weights": {"en": "weights", "es": "pesos"},
    "kv": {"en": "KV cache", "es": "caché KV"},
    "compute": {"en": "compute buffers", "es": "búferes de cálculo"},
    "prompt_cache": {"en": "prompt cache", "es": "caché de prompts"},
    "runtime": {"en": "runtime", "es": "procesos del motor"},
    "os_reserve": {"en": "reserve", "es": "reserva"},
    "total": {"en": "total", "es": "total"},
    "available": {"en": "available", "es": "disponible"},
    "column_variant": {"en": "VARIANT", "es": "VARIANTE"},
    "column_slots": {"en": "SLOTS", "es": "SLOTS"},
    "column_memory": {"en": "MEMORY", "es": "MEMORIA"},
    "column_speed": {"en": "TOKENS/S", "es": "TOKENS/S"},
    "column_users": {"en": "USERS", "es": "USUARIOS"},
    "month": {"en": "month", "es": "mes"},
}

SENTENCES: dict[str, dict[Lang, str]] = {
    # rows of the answer
    "row_variant_one": {
        "en": "{variant}, 1 slot of {context} tokens",
        "es": "{variant}, 1 slot de {context} tokens",
    },
    "row_variant": {
        "en": "{variant}, {slots} slots of {context} tokens each",
        "es": "{variant}, {slots} slots de {context} tokens cada uno",
    },
    "row_memory": {"en": "{total} of {available}", "es": "{total} de {available}"},
    "row_speed": {
        "en": "{decode} tokens/s for one user, {full} each with every slot busy: 200 tokens in {seconds}; prompts are "
        "read at {prefill} tokens/s; all within a factor of {band:.2g}",
        "es": "{decode} tokens/s para un usuario, {full} cada uno con todos los slots ocupados: 200 tokens en "
        "{seconds}; "
        "los prompts se leen a {prefill} tokens/s; todo con un factor de {band:.2g}",
    },
    "row_speed_one": {
        "en": "{decode} tokens/s: 200 tokens in {seconds}; prompts are read at {prefill} tokens/s; all within a "
        "factor of "
        "{band:.2g}",
        "es": "{decode} tokens/s: 200 tokens en {seconds}; los prompts se leen a {prefill} tokens/s; todo con un "
        "factor "
        "de {band:.2g}",
    },
    "row_users": {
        "en": "about {users} at once under the SLO {slo}, between {low} and {high}: a prediction, not a certificate",
        "es": "unos {users} a la vez con el SLO {slo}, entre {low} y {high}: una predicción, no un certificado",
    },
    "row_users_none": {
        "en": "none under the SLO {slo} (at best {high}): a prediction",
        "es": "ninguno con el SLO {slo} ({high} en el mejor caso): una predicción",
    },
    "row_cost": {"en": "{month} {currency} a month", "es": "{month} {currency} al mes"},
    "row_cost_users": {
        "en": "{month} {currency} a month: {user} a user, {million} a million tokens",
        "es": "{month} {currency} al mes: {user} por usuario, {million} por millón de tokens",
    },
    # why this variant, these slots, this context
    "variant_only": {
        "en": "variant {variant}: the only one to choose from",
        "es": "variante {variant}: la única que se puede elegir",
    },
    "variant_best": {
        "en": "variant {variant}: the best quality that fits {machine}",
        "es": "variante {variant}: la mejor calidad que cabe en {machine}",
    },
    "variant_quick": {
        "en": "variant {variant}: the best quality that fits {machine} and is predicted to meet {judged}",
        "es": "variante {variant}: la mejor calidad que cabe en {machine} y cumple {judged}, según la predicción",
    },
    "variant_slow": {
        "en": "variant {variant}: no variant is predicted to meet {judged} on {machine}; this is the least slow",
        "es": "variante {variant}: ninguna cumple {judged} en {machine}, según la predicción; esta es la menos lenta",
    },
    "judged_slo": {"en": "the SLO {slo}", "es": "el SLO {slo}"},
    "judged_promise": {
        "en": "the {rate:g} tokens/s that the plan promises",
        "es": "los {rate:g} tokens/s que promete el plan",
    },
    "and": {"en": "{first} and {second}", "es": "{first} y {second}"},
    "machine_plan": {"en": "plan {plan}", "es": "el plan {plan}"},
    "machine_this": {"en": "this machine", "es": "esta máquina"},
    "slots_one": {
        "en": "1 slot of {context} tokens: {kv} of KV cache",
        "es": "1 slot de {context} tokens: {kv} de caché KV",
    },
    "slots": {
        "en": "{slots} slots of {context} tokens: {kv} of KV cache",
        "es": "{slots} slots de {context} tokens: {kv} de caché KV",
    },
    "slots_memory": {"en": "more do not fit", "es": "más no caben"},
    "slots_speed": {
        "en": "more would make every answer slower than it is worth",
        "es": "más harían cada respuesta más lenta de lo que vale",
    },
    "slots_most": {
        "en": "that is the most that is set: nothing was measured beyond",
        "es": "es lo máximo que se configura: más allá no se midió nada",
    },
    "slots_forced": {
        "en": "1 slot: Ollama gives the family {family} no more, so requests are answered one after the other",
        "es": "1 slot: Ollama no da más a la familia {family}, así que las peticiones se atienden una tras otra",
    },
    "split": {
        "en": "only {on_gpu} of {layers} layers fit on the GPU; the rest runs on the CPU and sets the pace",
        "es": "solo {on_gpu} de {layers} capas caben en la GPU; el resto corre en la CPU y marca el ritmo",
    },
    "context_asked": {
        "en": "context {context} tokens per slot, as asked",
        "es": "contexto de {context} tokens por slot, como se pidió",
    },
    "context": {
        "en": "context {context} tokens per slot: 99 % of the {workload} workload's requests need at most {needed}",
        "es": "contexto de {context} tokens por slot: el 99 % de las peticiones de {workload} cabe en {needed}",
    },
    "context_capped": {
        "en": "context {context}, the most that {model} was trained for; the {workload} workload needs {needed}",
        "es": "contexto {context}, lo máximo para lo que {model} fue entrenado; la carga {workload} necesita {needed}",
    },
    # CPU or GPU
    "slow_cpu": {
        "en": "slow or impossible on a CPU: {seconds:.0f} s per answer of 200 tokens, because every token reads "
        "{read} from "
        "memory; a model of this size wants a GPU",
        "es": "lento o imposible en CPU: {seconds:.0f} s por respuesta de 200 tokens, porque por cada token se leen "
        "{read} de memoria; un modelo de este tamaño pide GPU",
    },
    "slow_small": {
        "en": "the SLO {slo} is not met here even for one user: {seconds:.0f} s per answer of 200 tokens; real time "
        "wants a "
        "GPU, or a smaller model",
        "es": "el SLO {slo} no se cumple aquí ni con un usuario: {seconds:.0f} s por respuesta de 200 tokens; el "
        "tiempo "
        "real pide GPU, o un modelo más pequeño",
    },
    "slow_gpu": {
        "en": "slow or impossible here: {seconds:.0f} s per answer of 200 tokens; the model wants more video memory",
        "es": "lento o imposible aquí: {seconds:.0f} s por respuesta de 200 tokens; pide más memoria de vídeo",
    },
    "slow_slo": {
        "en": "the SLO {slo} is not met here even for one user: {seconds} s per answer of 200 tokens",
        "es": "el SLO {slo} no se cumple aquí ni con un usuario: {seconds} s por respuesta de 200 tokens",
    },
    "volume": {
        "en": "a GPU for the volume: {users} users, where this CPU is predicted to hold {predicted}, at best {high}",
        "es": "una GPU por el volumen: {users} usuarios, y esta CPU sostiene {predicted} según la predicción, {high} "
        "a lo "
        "sumo",
    },
    "more": {
        "en": "{users} users are more than this plan is predicted to hold: {predicted}, at best {high}",
        "es": "{users} usuarios son más de los que este plan sostiene según la predicción: {predicted}, {high} a lo "
        "sumo",
    },
    "cpu_enough": {
        "en": "a CPU is enough for this volume; what would want a GPU: more than {high} users, 200 tokens in less than "
        "{seconds} s, more than {read} of weights to read per token, or images",
        "es": "una CPU basta para este volumen; pedirían GPU: más de {high} usuarios, 200 tokens en menos de "
        "{seconds} s, "
        "más de {read} de pesos que leer por token, o imágenes",
    },
    "gpu_good": {
        "en": "a GPU for real time and volume: 200 tokens in {seconds} s, {users} users at once",
        "es": "una GPU por el tiempo real y el volumen: 200 tokens en {seconds} s, {users} usuarios a la vez",
    },
    "cpu_would_do": {
        "en": "for {users} users a CPU would do: plan {plan} is predicted to hold {predicted} at {price}",
        "es": "para {users} usuarios bastaría una CPU: el plan {plan} sostiene {predicted} por {price}, según la "
        "predicción",
    },
    "cpu_for_fewer": {
        "en": "for {predicted} users or fewer a CPU would do: plan {plan} at {price}",
        "es": "para {predicted} usuarios o menos bastaría una CPU: el plan {plan} por {price}",
    },
    "images": {
        "en": "{model} also reads images: on a CPU each takes many seconds; images want a GPU",
        "es": "{model} también lee imágenes: en CPU cada una tarda muchos segundos; las imágenes piden GPU",
    },
    "better_plan": {
        "en": "the cheapest plan of the catalogue for it: {plan} at {price}, predicted to hold {predicted}",
        "es": "el plan más barato del catálogo para ello: {plan} por {price}, sostiene {predicted} según la predicción",
    },
    "no_plan": {
        "en": "no plan of the catalogue is predicted to hold {users} users of {model} under the SLO {slo}",
        "es": "ningún plan del catálogo sostiene {users} usuarios de {model} con el SLO {slo}, según la predicción",
    },
    "measure_first": {
        "en": "at the low end of the prediction it holds {low}, fewer than the {users} wanted: measure before you "
        "sell it",
        "es": "en el extremo bajo de la predicción sostiene {low}, menos que los {users} pedidos: mida antes de "
        "venderlo",
    },
    "no_plan_one": {
        "en": "no plan of the catalogue is predicted to hold even one user of {model} under the SLO {slo}",
        "es": "ningún plan del catálogo sostiene ni un usuario de {model} con el SLO {slo}, según la predicción",
    },
    "calibrated": {
        "en": "calibrated from {runs} measured on {what}: speeds × {factor:.2f}",
        "es": "calibrado con {runs} en {what}: velocidades × {factor:.2f}",
    },
    "runs_one": {"en": "1 run", "es": "1 medición"},
    "runs": {"en": "{count} runs", "es": "{count} mediciones"},
    # what does not fit
    "miss_memory": {
        "en": "{what} needs {needed}, {machine} has {has}: {parts}",
        "es": "{what} necesita {needed}, {machine} tiene {has}: {parts}",
    },
    "miss_disk": {
        "en": "{what} needs {needed} of disk, {machine} has {has}",
        "es": "{what} necesita {needed} de disco, {machine} tiene {has}",
    },
    "miss_slots": {
        "en": "{what} with {slots} slots of {context} tokens",
        "es": "{what} con {slots} slots de {context} tokens",
    },
    "kv_detail": {"en": "{slots} × {context} tokens, {kv_type}", "es": "{slots} × {context} tokens, {kv_type}"},
    "smallest_plan": {"en": "the smallest plan that fits: {plan}", "es": "el plan más pequeño donde cabe: {plan}"},
    "largest_model": {
        "en": "the largest model of its kind that fits here: {model}",
        "es": "el modelo más grande de su tipo que cabe aquí: {model}",
    },
    "hint_smaller": {
        "en": "a smaller model (deployctl models), or a plan with more memory",
        "es": "un modelo más pequeño (deployctl models), o un plan con más memoria",
    },
    "hint_fewer": {
        "en": "a smaller model, a wider SLO, or fewer users",
        "es": "un modelo más pequeño, un SLO más amplio, o menos usuarios",
    },
    # details of --explain
    "part_weights": {"en": "{variant}, {parameters} parameters", "es": "{variant}, {parameters} parámetros"},
    "part_weights_gpu": {
        "en": "{variant}, {parameters} parameters; the input embedding ({host}) stays in main memory",
        "es": "{variant}, {parameters} parámetros; la tabla de entrada ({host}) queda en la memoria principal",
    },
    "part_kv": {
        "en": "{slots} × {context} tokens in {kv_type}, {each} a slot",
        "es": "{slots} × {context} tokens en {kv_type}, {each} por slot",
    },
    "part_compute": {"en": "one batch of {ubatch} tokens", "es": "un lote de {ubatch} tokens"},
    "part_runtime_cpu": {"en": "the engine's processes", "es": "los procesos del motor"},
    "part_runtime_gpu": {"en": "CUDA context and libraries", "es": "contexto y bibliotecas de CUDA"},
    "part_reserve_cpu": {"en": "for the system: 512 MiB and 3 %", "es": "para el sistema: 512 MiB y 3 %"},
    "part_reserve_gpu": {
        "en": "free on each GPU, as llama.cpp leaves it",
        "es": "libre en cada GPU, como hace llama.cpp",
    },
    "explain_fails": {"en": "does not fit", "es": "no cabe"},
    # where the figures come from
    "source_plan": {"en": "plan {plan}: inventory/plans.yml", "es": "plan {plan}: inventory/plans.yml"},
    "source_model": {"en": "{model}: {source}", "es": "{model}: {source}"},
    "source_size": {"en": "size of {variant}: {source}", "es": "tamaño de {variant}: {source}"},
    "source_estimate": {
        "en": "size of {variant}: estimated from the shapes of the tensors and llama.cpp's types per tensor "
        "(deployctl.sizing.weights), within 1 % of known files",
        "es": "tamaño de {variant}: estimado a partir de las formas de los tensores y los tipos de llama.cpp "
        "(deployctl.sizing.weights), a menos de 1 % de archivos conocidos",
    },
    "source_memory": {
        "en": "memory: llama.cpp's own allocations (deployctl.sizing.memory)",
        "es": "memoria: lo que asigna llama.cpp (deployctl.sizing.memory)",
    },
    "source_speed": {
        "en": "speed: memory bandwidth and published speeds (deployctl.sizing.speed)",
        "es": "velocidad: ancho de banda de memoria y velocidades publicadas (deployctl.sizing.speed)",
    },
    "source_fallback": {"en": "not asked, or in vain: {note}", "es": "sin respuesta: {note}"},
}


def say(key: str, lang: Lang, **figures: object) -> str:
    """Return the sentence ``key`` in ``lang`` with its figures."""
    return SENTENCES[key][lang].format(**figures)


def label(key: str, lang: Lang) -> str:
    """Return a heading or a single word in ``lang``."""
    return LABELS[key][lang]
