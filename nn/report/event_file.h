// The files that TensorBoard reads. Internal to nn/report/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::nn::detail {

/// Bytes of an event file: records of a length, the event, and a checksum of each (TFRecord; CRC-32C, masked). An event
/// is a message in the encoding of protocol buffers (tensorflow/core/util/event.proto).
std::string first_event(double wall_time);
/// That steps from this one on, which an earlier file of the folder may have, do not count.
std::string start_event(double wall_time, std::int64_t step);
/// Puts one behind the bytes of others.
void add_scalar_event(std::string& to, double wall_time, std::int64_t step,
                      const std::vector<std::pair<std::string_view, float>>& values);

/// CRC-32C (Castagnoli), as RFC 3720 has it.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace sluice::nn::detail
