// deltawire inspect FILE: every byte range of a file, with its meaning.
#include "cli/command.h"
#include "cli/patch_options.h"
#include "format/byte_map.h"
#include "pubsub/coding_name.h"
#include "tensor/memory.h"

namespace deltawire::cli {
namespace {

struct Options {
  std::string path;
  std::string inventory;
  std::string url;
};

ByteSpan AllBytes(const Memory& file) {
  return {static_cast<const uint8_t*>(file.handle()), file.size_bytes()};
}

// The inventory that an update of a run refers to.
Result<std::optional<format::Inventory>> GivenInventory(const Options& options, ByteSpan file) {
  if (!options.inventory.empty()) {
    DELTAWIRE_ASSIGN(const auto memory, MapFile(options.inventory, false));
    auto inventory = format::ParseInventory(AllBytes(*memory));
    if (!inventory) return Fail(inventory.error().Within(options.inventory));
    return *std::move(inventory);
  }
  if (options.url.empty()) return std::nullopt;
  DELTAWIRE_ASSIGN(const auto update, format::ParseUpdate(file));
  DELTAWIRE_ASSIGN(auto catalog, OpenCatalog(options.url));
  DELTAWIRE_ASSIGN(const auto inventory, catalog.LoadInventory(update.header.inventory));
  return *inventory;
}

Json HeaderJson(const format::UpdateHeader& header) {
  return {{"run", header.run},
          {"number", header.number},
          {"base", header.base ? Json(*header.base) : Json(nullptr)},
          {"writer", header.writer},
          {"inventory", header.inventory},
          {"base_digest", header.base_digest ? Json(header.base_digest->Hex()) : Json(nullptr)},
          {"digest", header.digest.Hex()}};
}

std::string CodingText(uint8_t coding) {
  if (coding > static_cast<uint8_t>(codec::Coding::kClass)) return fmt::format("coding {}", coding);
  return std::string(pubsub::CodingName(static_cast<codec::Coding>(coding)));
}

Json MapJson(const Options& options, const format::ByteMap& map, uint64_t size) {
  Json json = {{"path", options.path}, {"kind", format::FileKindName(map.kind)}, {"bytes", size}};
  if (map.update) json["update"] = HeaderJson(*map.update);
  json["ranges"] = Json::array();
  for (const auto& range : map.ranges) {
    json["ranges"].push_back({{"begin", range.begin}, {"end", range.end}, {"meaning", range.meaning}});
  }
  if (!map.table) return json;
  json["blocks"] = Json::array();
  for (const auto& block : map.table->blocks) {
    Json tensors = {map.inventory->tensors[block.tensor].name};
    for (const uint32_t tensor : block.joined) tensors.push_back(map.inventory->tensors[tensor].name);
    json["blocks"].push_back({{"tensors", tensors},
                              {"dtype", DtypeName(map.inventory->tensors[block.tensor].dtype)},
                              {"elements", format::BlockElements(block, *map.inventory)},
                              {"coding", CodingText(block.coding)},
                              {"begin", map.blocks_offset + block.offset},
                              {"end", map.blocks_offset + block.offset + block.bytes},
                              {"changed", block.changed},
                              {"uncertain", block.uncertain},
                              {"bytes_per_change", RatioJson(block.bytes, block.changed + block.uncertain)},
                              {"after", block.after.Hex()}});
    if (block.joint()) continue;
    json["blocks"].back()["start"] = block.box.start;
    json["blocks"].back()["size"] = block.box.size;
  }
  return json;
}

void PrintBlocks(Output& out, const format::ByteMap& map) {
  std::vector<std::vector<std::string>> rows = {
      {"tensors", "box", "coding", "changed", "uncertain", "bytes", "a change"}};
  for (const auto& block : map.table->blocks) {
    const std::string& first = map.inventory->tensors[block.tensor].name;
    const std::string tensors = block.joint()
                                    ? fmt::format("{} and {} more, to {}", first, block.joined.size(),
                                                  map.inventory->tensors[block.joined.back()].name)
                                    : first;
    rows.push_back({tensors, block.joint() ? "joint" : BoxText(block.box), CodingText(block.coding),
                    CountText(block.changed), CountText(block.uncertain), CountText(block.bytes),
                    BytesPerChangeText(block.bytes, block.changed + block.uncertain)});
  }
  out.Line("");
  out.Table(std::move(rows), "lllrrrr");
}

Result<ExitCode> Run(Session& session, const Options& options) {
  DELTAWIRE_ASSIGN(const auto file, MapFile(options.path, false));
  DELTAWIRE_ASSIGN(const auto inventory, GivenInventory(options, AllBytes(*file)));
  const auto map = format::MapBytes(AllBytes(*file), inventory ? &*inventory : nullptr);
  if (!map) return Fail(Error(map.error()).Within(options.path));
  Output& out = session.out;
  if (out.json) {
    out.JsonLine(MapJson(options, *map, file->size_bytes()));
    return kOk;
  }
  out.Line(fmt::format("{}, {} bytes", out.Strong(format::FileKindName(map->kind)),
                       CountText(file->size_bytes())));
  if (map->update) {
    const auto& header = *map->update;
    out.Facts({{"run", header.run},
               {"version", fmt::format("{}, on {}", header.number,
                                       header.base ? fmt::format("version {}", *header.base)
                                                   : std::string("a checkpoint or nothing"))},
               {"from", header.base_digest ? header.base_digest->Hex() : "any state"},
               {"to", header.digest.Hex()}});
  }
  std::vector<std::vector<std::string>> rows = {{"begin", "end", "bytes", "meaning"}};
  for (const auto& range : map->ranges) {
    rows.push_back({fmt::format("{}", range.begin), fmt::format("{}", range.end),
                    fmt::format("{}", range.end - range.begin), range.meaning});
  }
  out.Table(std::move(rows), "rrrl");
  if (map->table && !map->table->blocks.empty()) PrintBlocks(out, *map);
  return kOk;
}

}  // namespace

void AddInspect(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, session, "inspect", "Say what every byte of a deltawire or safetensors file means.",
                 "  deltawire inspect p.safetensors\n"
                 "  deltawire inspect /runs/7/updates/00000003/*.safetensors --url /runs/7\n"
                 "  deltawire inspect /runs/7/manifests/00000003.json --json\n",
                 [&session, options] { return Run(session, *options); });
  command
      ->add_option("FILE", options->path,
                   "patch, update, manifest, inventory, digest table or safetensors file")
      ->required();
  auto* inventory = command->add_option("--inventory", options->inventory,
                                        "inventory file that names the tensors of an update");
  command->add_option("--url", options->url, "run that the update belongs to, instead of --inventory")
      ->excludes(inventory);
}

}  // namespace deltawire::cli
