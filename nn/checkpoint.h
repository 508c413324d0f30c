// Checkpoints: parameters, optimiser state and text in one .safetensors file.
#pragma once

#include <filesystem>
#include <map>
#include <source_location>
#include <string>
#include <vector>

#include "sluice/nn/module.h"
#include "sluice/resources/random.h"

namespace sluice {

/// Writes the parameters under their names, the state (Optimizer::state) under "optimizer." and its names, and the
/// metadata (epoch, step, seeds, ...). The file appears whole or not at all. Blocking: waits for the values. Throws
/// Error where one is poisoned, FormatError where the file cannot be written, std::invalid_argument for a name used
/// twice.
void save_checkpoint(const std::filesystem::path& path, const std::vector<NamedParameter>& parameters,
                     const std::vector<NamedArray>& state = {}, const std::map<std::string, std::string>& metadata = {},
                     std::source_location where = std::source_location::current());

/// Reads a checkpoint into these arrays, on whatever devices they are, and returns the metadata. The writes are pushed,
/// and heal poisoned arrays. Blocks on the file. If a tensor is missing, is not expected, or has another shape or
/// dtype, it throws a FormatError of one line with the file, the tensor and both shapes; then nothing was changed.
/// Without `state` it ignores what the file holds under "optimizer.": for inference.
std::map<std::string, std::string> load_checkpoint(const std::filesystem::path& path,
                                                   const std::vector<NamedParameter>& parameters,
                                                   const std::vector<NamedArray>& state = {},
                                                   std::source_location where = std::source_location::current());

/// A random stream's state as metadata ("seed stream draw") and back. Throws std::invalid_argument for other text.
std::string to_text(const RandomStream::State& state);
RandomStream::State random_state(const std::string& text);

}  // namespace sluice
