"""The sentences of the advice, in English and Spanish."""

from __future__ import annotations

from typing import Literal

Lang = Literal["en", "es"]

SENTENCES: dict[str, dict[Lang, str]] = {
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
