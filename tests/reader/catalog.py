"""Replays a run folder: every hash, link and digest of every version is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import digest
import inventory
import manifest
import numpy as np
import safetensors_file
import update
from apply import State, apply
from codings import check


def number_text(number: int) -> str:
    return f"{number:08d}"


class Run:
    """A run in a file store. `base`: the checkpoint that version 0 starts from, where it starts from one."""

    def __init__(self, folder: Path, base: Path | None = None) -> None:
        self.folder = Path(folder)
        self.base = base
        self.texts: dict[int, bytes] = {}
        self.manifests: dict[int, manifest.Manifest] = {}
        self._states: dict[int, State] = {}
        for path in sorted((self.folder / "manifests").glob("*.json")):
            text = path.read_bytes()
            found = manifest.parse(text)
            check(
                path.name == f"{number_text(found.number)}.json", f"{path.name} is of version {found.number}"
            )
            self.texts[found.number] = text
            self.manifests[found.number] = found
        check(len(self.manifests) > 0, f"{folder} has no version")
        self.numbers = sorted(self.manifests)
        newest = self.manifests[self.numbers[-1]]
        text = (self.folder / f"inventory-{newest.inventory}.json").read_bytes()
        self.inventory = inventory.parse(text)
        check(self.inventory.sha256 == newest.inventory, "hash of the inventory")
        for found in self.manifests.values():
            check(found.run == newest.run, f"version {found.number} is of run {found.run}")
            check(found.inventory == newest.inventory, f"version {found.number} has another inventory")
            self._check_links(found)

    def _check_links(self, found: manifest.Manifest) -> None:
        base = found.base
        if base.kind == "version" and base.number in self.manifests:
            check(
                hashlib.sha256(self.texts[base.number]).hexdigest() == base.manifest,
                f"version {found.number}: hash of the manifest of its base",
            )
            check(
                self.manifests[base.number].digest == base.digest,
                f"version {found.number}: digest of its base",
            )
        if found.alias_of is not None and found.alias_of in self.manifests:
            check(self.manifests[found.alias_of].digest == found.digest, f"version {found.number}: alias")

    def _object(self, file: manifest.File, folder: str = "") -> bytes:
        data = (self.folder / folder / file.name).read_bytes()
        check(len(data) == file.bytes, f"{file.name} has {len(data)} bytes instead of {file.bytes}")
        check(hashlib.sha256(data).hexdigest() == file.sha256, f"{file.name}: SHA-256")
        return data

    def _check_table(self, file: manifest.File | None, state: State) -> None:
        if file is None:
            return
        stated = inventory.parse_digests(self._object(file), len(self.inventory.tensors))
        found = [digest.text(digest.of_tensor(name, bits)) for name, bits in state.items()]
        check(stated == found, f"{file.name} does not have the tensors' digests")

    def parts(self, number: int) -> dict[str, list[update.Update]]:
        """The version's updates by coding, checked against the manifest. Unknown codings are left out."""
        found = self.manifests[number]
        out: dict[str, list[update.Update]] = {}
        for part in found.parts:
            if part.coding not in manifest.KNOWN_CODINGS:
                continue
            data = self._object(part.file)
            parsed = update.parse(data)
            table = data[part.table_offset : part.table_offset + part.table_bytes]
            check(
                parsed.table_offset == part.table_offset and parsed.table == table, f"{part.file.name}: table"
            )
            check(
                hashlib.sha256(table).hexdigest() == part.table_sha256, f"{part.file.name}: hash of the table"
            )
            check(
                (
                    parsed.run,
                    parsed.number,
                    parsed.base,
                    parsed.writer,
                    parsed.inventory_sha256,
                    parsed.digest,
                )
                == (found.run, number, found.base.number, found.writer, found.inventory, found.digest),
                f"{part.file.name} is of another version than its manifest",
            )
            check(parsed.base_digest in (None, found.base.digest), f"{part.file.name}: digest of the base")
            out.setdefault(part.coding, []).append(parsed)
        return out

    def anchor(self, number: int) -> State | None:
        """The version's anchor, if it has one."""
        folder = f"anchors/{number_text(number)}"
        path = self.folder / folder / "manifest.json"
        if not path.exists():
            return None
        found = manifest.parse_anchor(path.read_bytes())
        of = self.manifests[number]
        check(
            (found.run, found.number, found.inventory, found.digest, found.manifest)
            == (of.run, number, of.inventory, of.digest, hashlib.sha256(self.texts[number]).hexdigest()),
            f"anchor {number} is of another version",
        )
        for file in found.files:
            self._object(file, folder)
        state = inventory.canonical(self.inventory, safetensors_file.read_checkpoint(self.folder / folder))
        self._check_table(found.tensor_digests, state)
        return state

    def _ways(self, number: int) -> Iterator[tuple[str, State]]:
        """Every way to the version's state, with a word for it."""
        found = self.manifests[number]
        if found.alias_of in self.manifests:
            yield "alias", self.state(found.alias_of)
        anchored = self.anchor(number)
        if anchored is not None:
            yield "anchor", anchored
        start = None
        if found.base.kind == "version" and found.base.number in self.manifests:
            start = self.state(found.base.number)
        elif found.base.kind == "checkpoint" and self.base is not None:
            start = inventory.canonical(self.inventory, safetensors_file.read_checkpoint(self.base))
            check(
                digest.text(digest.of_state(start)) == found.base.digest,
                "the checkpoint is not version 0's base",
            )
        for coding, parts in self.parts(number).items():
            if start is not None or parts[0].base_digest is None:
                yield coding, apply(parts, self.inventory, start)

    def state(self, number: int) -> State:
        """The version's tensors by canonical name. All ways that lead to it must agree."""
        if number not in self._states:
            found = self.manifests[number]
            ways = list(self._ways(number))
            check(len(ways) > 0, f"nothing leads to version {number}")
            state = ways[0][1]
            for way, other in ways:
                check(
                    all(np.array_equal(state[name], other[name]) for name in state),
                    f"version {number}: {way} and {ways[0][0]} differ",
                )
            stated = digest.text(digest.of_state(state))
            check(stated == found.digest, f"version {number} digests to {stated} instead of {found.digest}")
            check(
                sum(bits.size for bits in state.values()) == found.counts["total"], f"version {number}: total"
            )
            self._check_table(found.tensor_digests, state)
            self._states[number] = state
        return self._states[number]

    def replay(self) -> State:
        """Checks all versions, oldest first; returns the newest one's tensors."""
        for number in self.numbers:
            self.state(number)
        return self._states[self.numbers[-1]]
