#include "sluice/nn/files/save.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <system_error>

#include "sluice/engine/number_text.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/files.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/host_tensor.h"
#include "sluice/ndarray/formats/safetensors_header.h"
#include "sluice/operators/placed.h"

namespace sluice::nn {
namespace detail {
namespace {

void put(SavedFile& file, const std::string& name, const NDArray& value) {
  const bool control = std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 32; });
  if (name.empty() || control)
    throw UsageError("[nn::save] a name that is empty or has control characters: '" + name + "'");
  if (!file.arrays.emplace(name, value).second) throw UsageError("[nn::save] two arrays have the name '" + name + "'");
}

}  // namespace

void save_net(const Contents& net, const std::string& name, SavedFile& file) {
  for (const auto& [path, state] : net.slots) {
    if (state->kind == Kind::constant) continue;
    if (!state->value.defined()) {
      throw UsageError("[nn::save] '" + join(name, path) + "' has no value: call nn::initialise first");
    }
    put(file, join(name, path), gathered(state->value));
  }
}

void save_arrays(const std::vector<SavedArray>& arrays, const std::string& name, SavedFile& file) {
  for (const SavedArray& array : arrays) put(file, join(name, array.name), gathered(array.value));
}

std::vector<SavedArray> arrays_of(const std::string& name, const SavedFile& file) {
  const std::string prefix = join(name, "");
  std::vector<SavedArray> arrays;
  for (const auto& [full, tensor] : file.stored) {
    if (full.starts_with(prefix)) arrays.push_back({full.substr(prefix.size()), tensor.array()});
  }
  return arrays;
}

void save_counts(const std::map<std::string, std::int64_t>& counts, const std::string& name, SavedFile& file) {
  for (const auto& [key, value] : counts) file.metadata[join(name, key)] = std::to_string(value);
}

std::map<std::string, std::int64_t> counts_of(const std::string& name, const SavedFile& file, LoadPlan& plan) {
  const std::string prefix = join(name, "");
  std::map<std::string, std::int64_t> counts;
  for (const auto& [key, text] : file.metadata) {
    if (key != name && !key.starts_with(prefix)) continue;
    std::int64_t value = 0;
    if (!read_number(text, key, value, plan)) return {};
    counts[key == name ? "" : key.substr(prefix.size())] = value;
  }
  if (counts.empty()) plan.wrong.push_back("nothing is there for '" + name + "'");
  return counts;
}

const std::string* text_of(const std::string& name, const SavedFile& file, LoadPlan& plan) {
  const auto at = file.metadata.find(name);
  if (at != file.metadata.end()) return &at->second;
  plan.wrong.push_back("nothing is there for '" + name + "'");
  return nullptr;
}

std::string number_text(double x) { return general_text(x, 17); }

namespace {

template <class T>
bool read_text(const std::string& text, const std::string& name, const char* wanted, T& x, LoadPlan& plan) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error == std::errc() && end == text.data() + text.size()) return true;
  plan.wrong.push_back("'" + name + "' is '" + text + "', no " + wanted);
  return false;
}

}  // namespace

bool read_number(const std::string& text, const std::string& name, double& x, LoadPlan& plan) {
  return read_text(text, name, "number", x, plan);
}
bool read_number(const std::string& text, const std::string& name, std::int64_t& x, LoadPlan& plan) {
  return read_text(text, name, "whole number", x, plan);
}
bool read_number(const std::string& text, const std::string& name, std::uint64_t& x, LoadPlan& plan) {
  return read_text(text, name, "whole number from 0", x, plan);
}

std::string stream_text(const RandomStream& stream) {
  const RandomStream::State state = stream.state();
  return std::to_string(state.seed) + " " + std::to_string(state.stream) + " " + std::to_string(state.draw);
}

void read_stream(const std::string& text, const std::string& name, RandomStream& stream, LoadPlan& plan) {
  std::uint64_t numbers[3] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  bool fine = true;
  for (int i = 0; i < 3 && fine; ++i) {
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    fine = error == std::errc() && (i < 2 ? next < end && *next == ' ' : next == end);
    at = next + 1;
  }
  if (!fine) {
    plan.wrong.push_back("'" + name + "' is '" + text + "': a random stream's seed, stream and draw are wanted");
    return;
  }
  plan.changes.push_back(
      [&stream, state = RandomStream::State{numbers[0], numbers[1], numbers[2]}] { stream.restore(state); });
}

namespace {

DType dtype_named(std::string_view safetensors_name) {
  int i = 0;
  while (formats::safetensors_name(static_cast<DType>(i)) != safetensors_name) ++i;
  return static_cast<DType>(i);
}

void add_file(const std::filesystem::path& path, SavedFile& file) {
  const auto mapped = std::make_shared<const MappedArrays>(path);
  for (const auto& [name, info] : mapped->tensors()) {
    if (!info.known) {
      file.refused.emplace(name, info.dtype);
      continue;
    }
    const auto array = [mapped, of = name] {
      const DeviceScope host(cpu(0));
      return mapped->array(of);
    };
    if (!file.stored.emplace(name, StoredTensor{info.shape, dtype_named(info.dtype), array}).second) {
      throw FormatError(path, "tensor '" + name + "' is in another file of the model too");
    }
  }
  for (const auto& [key, text] : mapped->metadata()) file.metadata.emplace(key, text);
}

/// The files that an index names, in the folder of the index.
std::set<std::filesystem::path> files_of_index(const std::filesystem::path& path) {
  formats::InputFile in(path);
  std::string text(in.size(), ' ');
  in.read(std::as_writable_bytes(std::span(text)), "the index");
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw FormatError(path, "holds no index: an object with \"weight_map\" is wanted");
  }
  std::set<std::filesystem::path> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
      throw FormatError(path, "the file of '" + name + "' is no name of a file in the same folder");
    }
    files.insert(path.parent_path() / file.get<std::string>());
  }
  return files;
}

void check_names(const char* function, const Saved& items) {
  std::set<std::string> names;
  for (const SavedItem& item : items) {
    if (!names.insert(item.name).second) {
      throw UsageError("[" + std::string(function) + "] two items have the name '" + item.name + "'");
    }
    if (item.name.find('.') != std::string::npos) {
      throw UsageError("[" + std::string(function) + "] an item's name with a dot: '" + item.name + "'");
    }
  }
}

}  // namespace
}  // namespace detail

detail::SavedFile detail::saved_file(const char* function, const std::string& path, const Saved& items) {
  check_names(function, items);
  SavedFile file{.path = path};
  for (const SavedItem& item : items) item.thing->save(item.name, file);
  return file;
}

void save(const std::string& path, const Saved& items, std::source_location where) {
  const sluice::detail::Called called("nn::save", where);
  const detail::SavedFile file = detail::saved_file("nn::save", path, items);
  for (const auto& wait : file.waits) wait();
  sluice::save_arrays(path, file.arrays, file.metadata, where);
}

void load(const std::string& path, const Saved& items, const LoadOptions& options, std::source_location where) {
  const sluice::detail::Called called("nn::load", where);
  detail::check_names("nn::load", items);
  detail::SavedFile file{.path = path};
  if (path.ends_with(".json")) {
    for (const std::filesystem::path& part : detail::files_of_index(path)) detail::add_file(part, file);
  } else {
    detail::add_file(path, file);
  }
  detail::LoadPlan plan;
  for (const SavedItem& item : items) item.thing->load(item.name, file, options, plan);
  if (!plan.wrong.empty()) {
    constexpr std::size_t kMost = 50;
    std::string text;
    for (std::size_t i = 0; i < std::min(kMost, plan.wrong.size()); ++i) text += (i ? "; " : "") + plan.wrong[i];
    if (plan.wrong.size() > kMost) text += "; and " + std::to_string(plan.wrong.size() - kMost) + " more";
    throw FormatError(path, text);
  }
  const NoGrad off;
  for (const auto& change : plan.changes) change();
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

}  // namespace sluice::nn
