"""docs/formats/update.md: the file that turns one version into another."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import block_table
import inventory
import safetensors_file
import xxhash
from codings import ABSOLUTE, DENSE, check
from wire import FORMAT_VERSION, Cursor, Unsupported, compact, decimal, hexadecimal, identifier, run_name

MAX_HEADER_BYTES = 64 << 10
MAX_MORE_BASES = 1024
SECTIONS = "deltawire.blocks", "deltawire.entropy", "deltawire.inventory", "deltawire.table"
KEYS = (
    "format",
    "format_version",
    "run",
    "number",
    "base",
    "writer",
    "inventory",
    "base_digest",
    "digest",
    "content",
)


@dataclass(frozen=True)
class Update:
    run: str
    number: int
    base: int | None
    writer: str
    inventory_sha256: str
    base_digest: str | None
    more_bases: tuple[str, ...]
    digest: str
    blocks: bytes
    entropy: bytes
    table: bytes
    table_offset: int
    inventory: inventory.Inventory | None  # of a standalone patch


def content_hash(container: safetensors_file.Container) -> str:
    h = xxhash.xxh3_128()
    for key, value in sorted(container.metadata.items(), key=lambda item: item[0].encode()):
        if key != "content":
            h.update(f"{key}\0{value}\0".encode())
    for name, entry in sorted(container.entries.items(), key=lambda item: item[0].encode()):
        h.update(f"{name}\0{entry.dtype}\0{compact(list(entry.shape))}\0".encode())
        h.update(entry.begin.to_bytes(8, "little") + entry.end.to_bytes(8, "little"))
    h.update(container.data)
    return h.hexdigest()


def inflate(section: bytes) -> bytes:
    cursor = Cursor(section)
    size = cursor.varint()
    check(size <= inventory.MAX_TEXT_BYTES, f"inventory of {size} bytes")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(cursor.data[cursor.at :], size + 1)
    except zlib.error as error:
        check(False, f"inventory: {error}")
    check(unpacker.eof and not unpacker.unused_data and len(text) == size, "size of the inflated inventory")
    return text


def parse_more_bases(text: str) -> tuple[str, ...]:
    bases = tuple(hexadecimal(part, 32) for part in text.split(" "))
    check(len(bases) <= MAX_MORE_BASES, f"{len(bases)} more_bases")
    check(len(set(bases)) == len(bases), "a state named twice in more_bases")
    return bases


def parse(data: bytes) -> Update:
    container = safetensors_file.parse(data)
    metadata = container.metadata
    check(metadata.get("format") == "deltawire.update", f"format {metadata.get('format')!r}")
    if (version := metadata.get("format_version")) != str(FORMAT_VERSION):
        raise Unsupported(f"update has format version {version}, this reader knows {FORMAT_VERSION}")
    check(container.header_bytes <= MAX_HEADER_BYTES, f"header of {container.header_bytes} bytes")
    names = [name for name in SECTIONS if name in container.entries]
    check(len(names) == len(container.entries), f"sections {list(container.entries)}")
    check(set(SECTIONS) - {"deltawire.inventory"} <= set(names), f"sections {names}")
    at = 0
    for name in names:
        entry = container.entries[name]
        check(entry.dtype == "U8" and len(entry.shape) == 1, f"{name} is {entry.dtype} {entry.shape}")
        check(entry.begin == at, f"{name} is out of order")
        at = entry.end
    for key in KEYS:
        check(key in metadata, f"{key} is missing")
    check(content_hash(container) == metadata["content"], "content hash")
    number = decimal(metadata["number"])
    base = None if metadata["base"] == "none" else decimal(metadata["base"])
    check(base is None or base < number, f"base {base} of version {number}")
    base_digest = metadata["base_digest"]
    more_bases = parse_more_bases(metadata["more_bases"]) if "more_bases" in metadata else ()
    check(not more_bases or base_digest not in ("none", *more_bases), "more_bases and base_digest")
    own = None
    if "deltawire.inventory" in container.entries:
        own = inventory.parse(inflate(container.bytes_of("deltawire.inventory")))
        check(own.sha256 == metadata["inventory"], "the inventory inside is not the one that is named")
    return Update(
        run=run_name(metadata["run"]),
        number=number,
        base=base,
        writer=identifier(metadata["writer"]),
        inventory_sha256=hexadecimal(metadata["inventory"], 64),
        base_digest=None if base_digest == "none" else hexadecimal(base_digest, 32),
        more_bases=more_bases,
        digest=hexadecimal(metadata["digest"], 32),
        blocks=container.bytes_of("deltawire.blocks"),
        entropy=container.bytes_of("deltawire.entropy"),
        table=container.bytes_of("deltawire.table"),
        table_offset=container.header_bytes + container.entries["deltawire.table"].begin,
        inventory=own,
    )


def parse_table(update: Update, known: inventory.Inventory) -> block_table.Table:
    """The block table, after checking it and the sections against each other."""
    check(known.sha256 == update.inventory_sha256, "the update belongs to another inventory")
    table = block_table.parse(update.table, known)
    check(table.entropy_bytes == len(update.entropy), "size of the entropy section")
    check(table.entropy_hash == xxhash.xxh3_64_intdigest(update.entropy), "hash of the entropy section")
    check(table.blocks_bytes == len(update.blocks), "the blocks do not cover their section")
    for group in table.groups:
        for block in group.blocks:
            check(
                not update.more_bases or block.coding in (DENSE, ABSOLUTE),
                f"a block of coding {block.coding} in an update with more_bases",
            )
            data = update.blocks[block.offset : block.offset + block.bytes]
            check(block.hash == xxhash.xxh3_64_intdigest(data), f"hash of a block of tensor {group.tensor}")
    return table
