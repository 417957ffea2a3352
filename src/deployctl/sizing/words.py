"""The sentences of the advice, in English and Spanish."""

from __future__ import annotations

from typing import Literal

Lang = Literal["en", "es"]

SENTENCES: dict[str, dict[Lang, str]] = {
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
        "es": "variante {variant}: la mejor calidad que cabe en {machine} y que, según la predicción, cumple {judged}",
    },
    "variant_slow": {
        "en": "variant {variant}: no variant is predicted to meet {judged} on {machine}",
        "es": "variante {variant}: ninguna cumple {judged} en {machine}, según la predicción",
    },
    "slots": {
        "en": "{slots} slots of {context} tokens: {kv} of KV cache",
        "es": "{slots} slots de {context} tokens: {kv} de caché KV",
    },
    "slots_forced": {
        "en": "{slots} slot: Ollama gives the family {family} no more",
        "es": "{slots} slot: Ollama no da más a la familia {family}",
    },
    "split": {
        "en": "only {on_gpu} of {layers} layers fit on the GPU; the rest runs on the CPU",
        "es": "solo {on_gpu} de {layers} capas caben en la GPU; el resto corre en la CPU",
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
    "speed": {
        "en": "about {decode:.3g} tokens/s for one user (within a factor of {band:g}): {seconds:.3g} s for 200 tokens; "
        "{full:.3g} tokens/s each with all slots busy",
        "es": "unos {decode:.3g} tokens/s para un usuario (con un factor de {band:g}): {seconds:.3g} s por 200 tokens; "
        "{full:.3g} tokens/s cada uno con todos los slots ocupados",
    },
    "users": {
        "en": "about {users} users under the SLO {slo}, between {low} and {high}",
        "es": "unos {users} usuarios con el SLO {slo}, entre {low} y {high}",
    },
    "slow_cpu": {
        "en": "slow or impossible on a CPU: {seconds:.0f} s per answer of 200 tokens; {model} wants a GPU for its size",
        "es": "lento o imposible en CPU: {seconds:.0f} s por respuesta de 200 tokens; {model} pide GPU por su tamaño",
    },
    "slow_gpu": {
        "en": "slow or impossible here: {seconds:.0f} s per answer of 200 tokens; {model} wants more video memory",
        "es": "lento o imposible aquí: {seconds:.0f} s por respuesta de 200 tokens; {model} pide más memoria de vídeo",
    },
    "volume": {
        "en": "a GPU for the volume: {users} users, where this CPU holds {high} at best",
        "es": "una GPU por el volumen: {users} usuarios, y esta CPU sostiene {high} como mucho",
    },
    "cpu_enough": {
        "en": "a CPU is enough for {users} users; real time for more, larger models and images want a GPU",
        "es": "una CPU basta para {users} usuarios; más en tiempo real, modelos mayores e imágenes piden una GPU",
    },
    "gpu_good": {
        "en": "a GPU serves {users} users in real time",
        "es": "una GPU atiende a {users} usuarios en tiempo real",
    },
    "images": {
        "en": "{model} also reads images: on a CPU each takes many seconds; a GPU for images",
        "es": "{model} también lee imágenes: en CPU cada una tarda muchos segundos; una GPU para imágenes",
    },
}


def say(key: str, lang: Lang, **figures: object) -> str:
    """Return the sentence ``key`` in ``lang`` with its figures."""
    return SENTENCES[key][lang].format(**figures)
