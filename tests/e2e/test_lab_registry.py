"""A host that pulls its model from a registry on its network: cut in the middle, pinned, a tag that is not there."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nspawn.host import LabHost, running_host
from nspawn.registry import Store, running_registry

from deployctl.errors import ModelUnavailable
from deployctl.events import discard
from deployctl.provision.deploy import ModelFiles, provision
from deployctl.provision.settings import Settings, Source
from deployctl.resources import Project, shipped_root
from deployctl.sandbox import archive, model

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engine,
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed"),
]
BLOBS = "usr/share/ollama/.ollama/models/blobs"


@pytest.fixture(scope="module")
def host(lab_base: Path, lab_key: Path) -> Iterator[LabHost]:
    with running_host("puller", lab_key) as made:
        yield made


@pytest.fixture(scope="module")
def registry(host: LabHost, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A registry that the host reaches, with the model that the embedded engine ships."""
    with running_registry(tmp_path_factory.mktemp("registry"), host.gateway) as store:
        store.push("library/gemma3", "270m", model.gguf_path(cache_dir).read_bytes(), file_type="Q4_K_M")
        yield store


@pytest.fixture
def site(site_of: Callable[..., Any], host: LabHost, registry: Store, cache_dir: Path) -> Any:
    """Provisions the model of the registry, with the embedded engine as if it were a release of Ollama."""
    words = ("--ollama-archive", str(archive.build_archive(cache_dir)), "--registry", registry.address)
    made = site_of(host, *words, model=f"{registry.netloc}/library/gemma3:270m")
    made.shell.env.pop("DEPLOYCTL_OFFLINE")  # the one registry that a test may ask is its own
    return made


def test_a_pull_that_is_cut_goes_on_where_it_stopped_and_the_digest_is_told(site: Any, registry: Store) -> None:
    blobs = site.host.root_dir / BLOBS

    def arrived() -> int:
        return sum(path.stat().st_size for path in blobs.glob("sha256-*-partial"))

    def cut(_: object) -> None:
        deadline = time.monotonic() + 60
        while arrived() < 10 << 20:
            assert time.monotonic() < deadline, "no 10 MiB came"
        registry.kill()

    code, said = site.cut(f"Make the model available: {BLOBS}/*partial*", cut)
    kept = arrived()
    assert 10 << 20 <= kept < model.MODEL.bytes
    assert code == 5, said
    assert "the pull of" in said
    assert "broke off" in said
    assert "try: run the same command again: it goes on where it stopped" in said
    registry.start()
    done = site.shell.run("provision", *site.words, "--json")
    assert done.code == 0, done.err
    # What the registry says of the second request for the weights: only the rest was sent.
    sent = re.findall(
        rf'"GET /v2/library/gemma3/blobs/sha256:{model.MODEL.sha256} [^"]*" 206 (\d+)', registry.log.read_text()
    )
    assert sent[-1] == str(model.MODEL.bytes - kept)
    assert f"sha256:{done.document['model']['digest']}" == registry.manifest_digest("library/gemma3", "270m")
    assert site.answers() == "4"


def test_a_tag_that_the_registry_lacks_is_refused_before_the_host_is_touched(site: Any) -> None:
    site.words[site.words.index("--model") + 1] = site.model.replace("270m", "271m")
    answer = site.run()
    assert answer.code == 5
    assert "gemma3:271m" in answer.err
    assert "HTTP 404" in answer.err
    assert "✓ host" not in answer.err


@pytest.mark.matrix
def test_a_tag_that_is_gone_and_one_that_has_moved_from_the_pinned_digest_are_named(
    site: Any, registry: Store, host: LabHost, cache_dir: Path, tmp_path: Path
) -> None:
    target = host.target(tmp_path / "known_hosts")
    source = Source("ollama", archive.engine_version(), archive.build_archive(cache_dir))
    pinned = ModelFiles(site.model, insecure=True, digest=registry.manifest_digest("library/gemma3", "270m"))

    def run(wanted: ModelFiles) -> Any:
        settings = Settings(slots=1, context=512, threads=2)
        project, log = Project(shipped_root()), tmp_path / "log"
        return provision(target, settings, source, wanted, project=project, log=log, emit=discard)

    assert run(pinned).facts["model"]["digest"] == (pinned.digest or "").removeprefix("sha256:")
    with pytest.raises(ModelUnavailable, match=r"registry has no model .*:271m \(.*file does not exist"):
        run(replace(pinned, reference=site.model.replace("270m", "271m"), digest=None))
    registry.push("library/gemma3", "270m", model.gguf_path(cache_dir).read_bytes(), file_type="MOVED")
    run(pinned)
    host.run(f"rm -r /{BLOBS}/../manifests")
    with pytest.raises(ModelUnavailable, match="has another digest than the pinned one"):
        run(pinned)
