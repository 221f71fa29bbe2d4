"""deltawire fold: one patch for several, the same bits as applying them in turn, or an error and nothing."""

import pytest
from cli_driver import changed, deltawire, read_checkpoint, write_file, write_sharded


class Chain:
    """Checkpoints 0 ... n and the patches between them."""

    def __init__(self, folder, rng, start, shares, codings):
        self.states = [start]
        self.files = [write_file(folder / "0.safetensors", start)]
        self.patches = []
        for i, (share, coding) in enumerate(zip(shares, codings, strict=True), 1):
            self.states.append(changed(rng, self.states[-1], share))
            self.files.append(write_file(folder / f"{i}.safetensors", self.states[-1]))
            self.patches.append(folder / f"p{i}.safetensors")
            deltawire("diff", self.files[-2], self.files[-1], "-o", self.patches[-1], "--coding", coding)


@pytest.fixture
def chain(tmp_path, rng, small):
    return Chain(tmp_path, rng, small, [0.01, 0.05, 0, 0.02], ["class", "step", "absolute", "class"])


@pytest.mark.parametrize("coding", ["absolute", "class", "step"])
def test_a_fold_does_what_its_patches_do(tmp_path, chain, coding):
    fold = tmp_path / "fold.safetensors"
    report = deltawire("fold", chain.files[0], *chain.patches, "-o", fold, "--coding", coding, "--json").json
    last = deltawire("verify", chain.files[-1], "--json").json["digest"]
    assert report["digest"] == last
    assert deltawire("verify", fold, "--json").json["digest"] == last
    deltawire("apply", chain.files[0], fold, "-o", tmp_path / "out.safetensors")
    assert read_checkpoint(tmp_path / "out.safetensors") == chain.states[-1]
    # From a state on the way: only an absolute fold.
    midway = deltawire("apply", chain.files[2], fold, "-o", tmp_path / "midway.safetensors", expect=None)
    if coding == "absolute":
        assert midway.code == 0, midway
        assert read_checkpoint(tmp_path / "midway.safetensors") == chain.states[-1]
    else:
        assert midway.code == 3
        assert "wrong_base" in midway.stderr
        assert not (tmp_path / "midway.safetensors").exists()


def test_folds_of_folds_and_of_folders(tmp_path, rng, chain, small):
    first, rest, both = (tmp_path / f"{name}.safetensors" for name in ("first", "rest", "both"))
    deltawire("fold", chain.files[0], *chain.patches[:2], "-o", first)
    deltawire("fold", chain.files[2], *chain.patches[2:], "-o", rest)
    sharded = write_sharded(tmp_path / "sharded", small)
    deltawire("fold", sharded, first, rest, "-o", both)
    deltawire("apply", sharded, both, "-o", tmp_path / "out")
    assert read_checkpoint(tmp_path / "out") == chain.states[-1]


def test_what_comes_back_is_left_out_of_a_difference(tmp_path, chain):
    back = tmp_path / "back.safetensors"
    deltawire("diff", chain.files[1], chain.files[0], "-o", back)
    fold = tmp_path / "fold.safetensors"
    patches = chain.patches[0], back
    report = deltawire("fold", chain.files[0], *patches, "-o", fold, "--coding", "class", "--json").json
    assert report["changed"] == 0
    report = deltawire("fold", chain.files[0], *patches, "-o", fold, "--force", "--json").json
    assert report["changed"] > 0
    deltawire("apply", chain.files[1], fold, "-o", tmp_path / "out.safetensors")
    assert read_checkpoint(tmp_path / "out.safetensors") == chain.states[0]


def test_refusals_write_nothing(tmp_path, chain):
    fold = tmp_path / "fold.safetensors"
    for base, patches, named in [
        (chain.files[1], chain.patches, "p1.safetensors"),
        (chain.files[0], [chain.patches[1], chain.patches[0]], "p2.safetensors"),
        (chain.files[0], [chain.patches[0], chain.patches[3]], "p4.safetensors"),
    ]:
        refused = deltawire("fold", base, *patches, "-o", fold, expect=3)
        assert "wrong_base" in refused.stderr
        assert named in refused.stderr
        assert not fold.exists()
    torn = tmp_path / "torn.safetensors"
    data = bytearray(chain.patches[1].read_bytes())
    data[len(data) // 2] ^= 4
    torn.write_bytes(data)
    refused = deltawire("fold", chain.files[0], chain.patches[0], torn, "-o", fold, expect=None)
    assert refused.code != 0
    assert "torn.safetensors" in refused.stderr
    assert not fold.exists()
    before = chain.patches[0].read_bytes()
    for over in (chain.patches[0], chain.files[0]):
        deltawire("fold", chain.files[0], *chain.patches, "-o", over, "--force", expect=3)
    assert chain.patches[0].read_bytes() == before
    assert not list(tmp_path.glob("*.tmp*"))
