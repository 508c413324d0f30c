#include "sluice/nn/files/save.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <system_error>
#include <unordered_map>

#include "sluice/engine/number_text.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/files.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/formats/host_tensor.h"
#include "sluice/operators/placed.h"

namespace sluice::nn {
namespace detail {
namespace {

std::string describe(const NDArray& x) { return std::string(name_of(x.dtype())) + " " + to_string(x.shape()); }
std::string describe(DType dtype, const Dims& shape) { return std::string(name_of(dtype)) + " " + to_string(shape); }

/// Of arrays in the memory of a file. Reads them.
bool same_elements(const NDArray& a, const NDArray& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.to_bytes() == b.to_bytes();
}

std::string prefix_of(const std::string& item) { return item.empty() ? "" : item + "."; }

void put(SavedFile& file, const std::string& name, const NDArray& value) {
  const bool control = std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 32; });
  if (name.empty() || control)
    throw UsageError("[nn::save] a name that is empty or has control characters: '" + name + "'");
  if (!file.arrays.emplace(name, value).second) throw UsageError("[nn::save] two arrays have the name '" + name + "'");
}

/// The tensors of an item, by their names behind its own after renaming.
std::map<std::string, std::string> names_of(const std::string& item, const SavedFile& file,
                                            const LoadOptions& options) {
  std::map<std::string, std::string> names;
  const auto add = [&](const std::string& full) {
    if (!full.starts_with(prefix_of(item))) return;
    std::string name = full.substr(prefix_of(item).size());
    for (const auto& [from, to] : options.rename) {
      if (!name.starts_with(from)) continue;
      name = to + name.substr(from.size());
      break;
    }
    names.emplace(name, full);
  };
  for (const auto& [full, array] : file.arrays) add(full);
  for (const auto& [full, dtype] : file.refused) add(full);
  return names;
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

void load_net(const Contents& net, const std::string& name, const SavedFile& file, const LoadOptions& options,
              LoadPlan& plan) {
  std::map<std::string, std::string> names = names_of(name, file, options);
  std::unordered_map<const State*, std::vector<Named>> further;
  for (const Named& alias : net.aliases) further[alias.state.get()].push_back(alias);
  const auto wanted = [&](const Named& slot) { return !options.only || options.only->match(slot); };
  const Device device = current_scope().device;
  bool any = false;
  for (const Named& slot : net.slots) {
    const std::shared_ptr<State> state = slot.state;
    const std::vector<Named>& aliases = further[state.get()];
    if (state->kind == Kind::constant) {  // not in files: made anew
      if (state->value.defined()) continue;
      plan.changes.push_back([state, device, path = slot.name] {
        const DeviceScope scope(device);
        if (state->layout) current_scope().interpreter = 0;  // a MeshScope would make a whole one at each place
        RandomStream stream(0);
        state->value = state->laid_out(state->init(state->shape, DType::f32, stream));
        state->set_path(path);
      });
      continue;
    }
    // What is tied may be in the file under any of its paths; nn::save writes the first.
    std::vector<std::string> fulls;
    const auto take = [&](const Named& place) {
      if (auto taken = names.extract(place.name)) fulls.push_back(std::move(taken.mapped()));
    };
    take(slot);
    for (const Named& alias : aliases) take(alias);
    if (!wanted(slot) && std::none_of(aliases.begin(), aliases.end(), wanted)) continue;
    any = true;
    const DType dtype = state->value.defined() ? state->value.dtype() : DType::f32;
    if (fulls.empty()) {
      plan.wrong.push_back("no tensor '" + join(name, slot.name) + "', wanted as " + describe(dtype, state->shape));
      continue;
    }
    const std::string& full = fulls.front();
    const auto found = file.arrays.find(full);
    if (found == file.arrays.end()) {
      plan.wrong.push_back("'" + full + "' is of a dtype " + file.refused.at(full) + " that Sluice lacks");
      continue;
    }
    const NDArray& array = found->second;
    // Without a value the net takes the file's dtype.
    const bool fits = !state->value.defined() ? is_floating(array.dtype())
                                              : array.dtype() == dtype || (options.cast && is_floating(array.dtype()));
    if (!(array.shape() == state->shape) || !fits) {
      plan.wrong.push_back("'" + full + "' is " + describe(array) + ", wanted " + describe(dtype, state->shape));
      continue;
    }
    for (std::size_t i = 1; i < fulls.size(); ++i) {
      const auto other = file.arrays.find(fulls[i]);
      if (other != file.arrays.end() && same_elements(array, other->second)) continue;
      plan.wrong.push_back("'" + full + "' and '" + fulls[i] + "' differ, and are one parameter of the net");
    }
    const DType target = state->value.defined() || options.cast ? dtype : array.dtype();
    plan.changes.push_back([state, array, target, device, path = slot.name] {
      if (state->value.defined()) {
        const Layout layout = layout_of(state->value);
        state->value.assign(layout ? place(array.to(target), layout) : array.to(target).to(state->value.device()));
      } else {
        const NDArray there = array.to(target).to(device);
        state->value = state->laid_out(there.same_array(array) && !state->layout ? array.copy() : there);
        state->want_gradient();
      }
      state->set_path(path);
    });
  }
  if (options.only && !any) {
    plan.wrong.push_back("only " + options.only->text + ": matches nothing of the net '" + name + "'");
  }
  for (const auto& [path, full] : names) {
    if (options.only && !options.only->match({path, std::make_shared<State>()})) continue;
    const auto array = file.arrays.find(full);
    plan.wrong.push_back("'" + full + "' (" +
                         (array == file.arrays.end() ? file.refused.at(full) : describe(array->second)) +
                         ") is not expected");
  }
  for (const auto& [path, place] : net.places) {
    plan.changes.push_back([to = path, part = place] { part->set_path(to); });
  }
}

void save_arrays(const std::vector<SavedArray>& arrays, const std::string& name, SavedFile& file) {
  for (const SavedArray& array : arrays) put(file, join(name, array.name), gathered(array.value));
}

std::vector<SavedArray> arrays_of(const std::string& name, const SavedFile& file) {
  std::vector<SavedArray> arrays;
  for (const auto& [path, full] : names_of(name, file, {})) {
    const auto array = file.arrays.find(full);
    if (array != file.arrays.end()) arrays.push_back({path, array->second});
  }
  return arrays;
}

void save_counts(const std::map<std::string, std::int64_t>& counts, const std::string& name, SavedFile& file) {
  for (const auto& [key, value] : counts) file.metadata[join(name, key)] = std::to_string(value);
}

std::map<std::string, std::int64_t> counts_of(const std::string& name, const SavedFile& file, LoadPlan& plan) {
  std::map<std::string, std::int64_t> counts;
  for (const auto& [key, text] : file.metadata) {
    if (key != name && !key.starts_with(prefix_of(name))) continue;
    std::int64_t value = 0;
    if (!read_number(text, key, value, plan)) return {};
    counts[key == name ? "" : key.substr(prefix_of(name).size())] = value;
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

void add_file(const std::filesystem::path& path, SavedFile& file) {
  const MappedArrays mapped(path);
  const DeviceScope host(cpu(0));
  for (const auto& [name, info] : mapped.tensors()) {
    if (!info.known) {
      file.refused.emplace(name, info.dtype);
    } else if (!file.arrays.emplace(name, mapped.array(name)).second) {
      throw FormatError(path, "tensor '" + name + "' is in another file of the model too");
    }
  }
  for (const auto& [key, text] : mapped.metadata()) file.metadata.emplace(key, text);
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

void save(const std::string& path, const Saved& items, std::source_location where) {
  const sluice::detail::Called called("nn::save", where);
  detail::check_names("nn::save", items);
  detail::SavedFile file{path, {}, {}, {}};
  for (const SavedItem& item : items) item.thing->save(item.name, file);
  sluice::save_arrays(path, file.arrays, file.metadata, where);
}

void load(const std::string& path, const Saved& items, const LoadOptions& options, std::source_location where) {
  const sluice::detail::Called called("nn::load", where);
  detail::check_names("nn::load", items);
  detail::SavedFile file{path, {}, {}, {}};
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
