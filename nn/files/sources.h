// Which tensors of a file a net's parameters come from, by LoadOptions: for nn::load alone.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sluice/nn/files/save.h"

namespace sluice::nn::detail {

/// Where a parameter comes from.
struct Source {
  const Rename* rule = nullptr;         ///< none: the name stays
  std::vector<std::string> tensors{};   ///< their whole names in the file; "" for one that is not there
  std::vector<std::string> expected{};  ///< likewise, with those that are not there
  /// "'a', 'b'", of those that are there.
  std::string text() const;
  bool converted() const { return rule && rule->convert; }
};

/// The sources of an item's parameters, by their paths behind its name. What is wrong with names is noted.
std::map<std::string, Source> sources_of(const std::string& item, const SavedFile& file, const LoadOptions& options,
                                         LoadPlan& plan);

/// The value that a parameter gets.
struct Incoming {
  std::function<NDArray()> make;
  Dims shape;
  DType dtype;
};
/// None, and notes of what is wrong, where a tensor is missing or refused, or its conversion throws.
std::optional<Incoming> incoming(const Source& source, const std::string& path, const SavedFile& file, LoadPlan& plan);

}  // namespace sluice::nn::detail
