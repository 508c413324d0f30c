// save and load: nets, optimisers, loaders, random streams and numbers in one .safetensors file.
//
//   nn::save("run.safetensors", {{"net", net}, {"opt", opt}, {"data", train}, {"stream", stream}, {"best", best}});
//   nn::load("run.safetensors", {{"net", net}, {"opt", opt}, {"data", train}, {"stream", stream}, {"best", best}});
//
// A net's tensors have the names "net.blocks.0.up.weight", an optimiser's "opt.blocks.0.up.weight.exp_avg"; other
// things are in the metadata. An item with the name "" has its tensors at the top, as files of other programs do:
//   nn::load("model.safetensors", {{"", net}},
//            {.rename = {{"h.*.mlp.c_fc.", "blocks.*.up.", nn::Transposed{}}}, .ignore = "*.attn.bias", .cast = true});
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/nn/files/rename.h"
#include "sluice/nn/files/saved_array.h"
#include "sluice/nn/net/net.h"

namespace sluice::nn {

struct LoadOptions {
  /// Of nets: only these paths are loaded; what else the file holds, and what else the net has, stays.
  std::optional<Select> only{};
  /// Beginnings of the file's names, behind the item's own, that become others, and tensors that are laid out otherwise
  /// (rename.h). Of each name the first that fits counts.
  std::vector<Rename> rename{};
  /// What the file may hold besides: patterns of its names, behind the item's own and before they are renamed, as in
  /// Select, "*.position_ids|pooler.*". They may match nothing.
  std::string ignore{};
  bool cast = false;  ///< floating dtypes may differ: values are converted to the net's
};

namespace detail {

/// A tensor of a mapped file: nothing of it is read before `array` is called.
struct StoredTensor {
  Dims shape;
  DType dtype;
  std::function<NDArray()> array;  ///< on the host
};
/// What a file holds, or is to hold.
struct SavedFile {
  std::string path;
  std::map<std::string, NDArray> arrays{};  ///< of what is saved
  std::map<std::string, std::string> metadata{};
  std::map<std::string, std::string> refused{};  ///< tensors of dtypes that there are not: name to dtype
  std::map<std::string, StoredTensor> stored{};  ///< of a file that is read
  /// Of what is saved: to be called, on any thread, before the file is there.
  std::vector<std::function<void()>> waits{};
};
/// All that is wrong, and what to do if nothing is.
struct LoadPlan {
  std::vector<std::string> wrong;
  std::vector<std::function<void()>> changes;
};

class SavedThing {
 public:
  virtual ~SavedThing() = default;
  virtual void save(const std::string& name, SavedFile& file) const = 0;
  virtual void load(const std::string& name, const SavedFile& file, const LoadOptions& options,
                    LoadPlan& plan) const = 0;
};

void save_net(const Contents& net, const std::string& name, SavedFile& file);
void load_net(const Contents& net, const std::string& name, const SavedFile& file, const LoadOptions& options,
              LoadPlan& plan);
void save_arrays(const std::vector<SavedArray>& arrays, const std::string& name, SavedFile& file);
std::vector<SavedArray> arrays_of(const std::string& name, const SavedFile& file);
void save_counts(const std::map<std::string, std::int64_t>& counts, const std::string& name, SavedFile& file);
/// Empty, and a line in plan.wrong, where a text is no number or there is none.
std::map<std::string, std::int64_t> counts_of(const std::string& name, const SavedFile& file, LoadPlan& plan);
/// Null, and a line in plan.wrong, where there is none.
const std::string* text_of(const std::string& name, const SavedFile& file, LoadPlan& plan);
std::string number_text(double x);
/// False, and a line in plan.wrong, where the text is no such number.
bool read_number(const std::string& text, const std::string& name, double& x, LoadPlan& plan);
bool read_number(const std::string& text, const std::string& name, std::int64_t& x, LoadPlan& plan);
bool read_number(const std::string& text, const std::string& name, std::uint64_t& x, LoadPlan& plan);
std::string stream_text(const RandomStream& stream);
void read_stream(const std::string& text, const std::string& name, RandomStream& stream, LoadPlan& plan);

template <class T>
class SavedObject final : public SavedThing {
 public:
  explicit SavedObject(T& object) : object_(object) {}

  void save(const std::string& name, SavedFile& file) const override {
    if constexpr (HasSavedArrays<T>) {
      save_arrays(object_.saved_arrays(), name, file);
      save_counts(object_.counts(), name, file);
    } else if constexpr (HasPosition<T>) {
      save_counts(object_.position(), name, file);
      if constexpr (HasOutput<T>) file.waits.push_back(object_.output());
    } else if constexpr (std::is_same_v<T, RandomStream>) {
      file.metadata[name] = stream_text(object_);
    } else if constexpr (std::is_same_v<T, std::string>) {
      file.metadata[name] = object_;
    } else if constexpr (std::is_integral_v<T>) {
      file.metadata[name] = std::to_string(object_);
    } else if constexpr (std::is_floating_point_v<T>) {
      file.metadata[name] = number_text(object_);
    } else {
      save_net(contents(object_), name, file);
    }
  }

  void load(const std::string& name, const SavedFile& file, const LoadOptions& options, LoadPlan& plan) const override {
    T& object = object_;
    if constexpr (HasSavedArrays<T>) {
      const auto counts = counts_of(name, file, plan);
      auto arrays = arrays_of(name, file);
      for (const std::string& wrong : object.load_arrays(arrays, true)) plan.wrong.push_back(name + ": " + wrong);
      plan.changes.push_back([&object, counts, arrays = std::move(arrays)] {
        object.set_counts(counts);
        object.load_arrays(arrays, false);
      });
    } else if constexpr (HasPosition<T>) {
      const auto position = counts_of(name, file, plan);
      const auto before = object.position();
      if (position.empty()) return;
      try {  // an object says itself what fits
        object.set_position(position);
        object.set_position(before);
      } catch (const UsageError& error) {
        plan.wrong.push_back(name + ": " + error.what());
      }
      plan.changes.push_back([&object, position] { object.set_position(position); });
    } else if constexpr (std::is_same_v<T, RandomStream>) {
      if (const std::string* text = text_of(name, file, plan)) read_stream(*text, name, object, plan);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (const std::string* text = text_of(name, file, plan)) {
        plan.changes.push_back([&object, value = *text] { object = value; });
      }
    } else if constexpr (std::is_arithmetic_v<T>) {
      using Integer = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
      std::conditional_t<std::is_integral_v<T>, Integer, double> x = 0;
      const std::string* text = text_of(name, file, plan);
      if (!text || !read_number(*text, name, x, plan)) return;
      if constexpr (std::is_integral_v<T>) {
        if (!std::in_range<std::conditional_t<std::is_same_v<T, bool>, unsigned char, T>>(x)) {
          plan.wrong.push_back("'" + name + "' is " + *text + ", which does not fit its type");
        }
      }
      plan.changes.push_back([&object, x] { object = static_cast<T>(x); });
    } else {
      load_net(contents(object), name, file, options, plan);
    }
  }

 private:
  T& object_;
};

}  // namespace detail

/// A name and what stands for it in a file: a net, an Optimizer, a Loader or Windows, a RandomStream, a number, a
/// std::string. Refers to the object.
struct SavedItem {
  template <class T>
  SavedItem(std::string name_, T& object)
      : name(std::move(name_)),
        thing(std::make_shared<detail::SavedObject<std::remove_const_t<T>>>(
            const_cast<std::remove_const_t<T>&>(object))) {}
  std::string name;
  std::shared_ptr<const detail::SavedThing> thing;
};
/// Items of one file, each with a name of its own.
using Saved = std::vector<SavedItem>;

namespace detail {
/// All that a file of these is made of, as it is at this instant: handles of arrays, and text. Throws as save() does.
SavedFile saved_file(const char* function, const std::string& path, const Saved& items);
}  // namespace detail

/// Writes the file, whole or not at all: parameters and statistics of nets (constants are not saved, what is tied is
/// saved once, under the first of its paths), what optimisers keep, positions, numbers. Blocking: waits for the values.
/// Throws Error where one is poisoned, FormatError where the file cannot be written, UsageError for a parameter without
/// a value, a name used twice, and a path with control characters.
void save(const std::string& path, const Saved& items, std::source_location where = std::source_location::current());

/// Reads the file into the same items: all of them, or nothing. If a tensor of an item is missing, is not expected, or
/// has another shape or dtype, or a text does not fit, it throws a FormatError that lists everything that is wrong, and
/// nothing was changed. What the file holds for other items is left alone. Parameters that have a value keep their
/// array, which is written; others get one, on the device of the thread's scope, as from nn::initialise;
/// so do constants, by their Init with seed 0. What is tied may have any of its paths in the file, or several with the
/// same elements.
///
/// `path` may also be a `.safetensors.index.json`, which names the files of a model in parts. The file is mapped, and
/// only what is asked for is read: values are copied as operations run, so it must not be written in place meanwhile
/// (nn::save replaces it, which is safe). Blocks on the header.
void load(const std::string& path, const Saved& items, const LoadOptions& options = {},
          std::source_location where = std::source_location::current());

/// Whether there is such a file.
bool exists(const std::string& path);

}  // namespace sluice::nn
