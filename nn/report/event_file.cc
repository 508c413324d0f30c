#include "sluice/nn/report/event_file.h"

#include <array>
#include <bit>

namespace sluice::nn::detail {
namespace {

constexpr std::array<std::uint32_t, 256> kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t x = i;
    for (int bit = 0; bit < 8; ++bit) x = x >> 1 ^ (x & 1 ? 0x82f63b78U : 0U);
    table[i] = x;
  }
  return table;
}();

template <class T>
void put_fixed(std::string& to, T x) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to.push_back(static_cast<char>(x >> 8 * i & 0xff));
}
void put_varint(std::string& to, std::uint64_t x) {
  for (; x >= 0x80; x >>= 7) to.push_back(static_cast<char>(x | 0x80));
  to.push_back(static_cast<char>(x));
}

// Fields of a message: a number and a wire type, then the value.
void put_tag(std::string& to, unsigned field, unsigned wire) { put_varint(to, field << 3 | wire); }
void put_double(std::string& to, unsigned field, double x) {
  put_tag(to, field, 1);
  put_fixed(to, std::bit_cast<std::uint64_t>(x));
}
void put_float(std::string& to, unsigned field, float x) {
  put_tag(to, field, 5);
  put_fixed(to, std::bit_cast<std::uint32_t>(x));
}
void put_integer(std::string& to, unsigned field, std::int64_t x) {
  put_tag(to, field, 0);
  put_varint(to, static_cast<std::uint64_t>(x));
}
void put_bytes(std::string& to, unsigned field, const std::string& bytes) {
  put_tag(to, field, 2);
  put_varint(to, bytes.size());
  to += bytes;
}

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

std::string record(const std::string& event) {
  std::string length;
  put_fixed(length, std::uint64_t{event.size()});
  std::string bytes = length;
  put_fixed(bytes, masked(crc32c(length)));
  bytes += event;
  put_fixed(bytes, masked(crc32c(event)));
  return bytes;
}

enum EventField : unsigned {
  wall_time_field = 1,
  step_field = 2,
  version_field = 3,
  summary_field = 5,
  session_field = 7
};

}  // namespace

std::uint32_t crc32c(const std::string& bytes) {
  std::uint32_t x = ~0U;
  for (const char c : bytes) x = x >> 8 ^ kTable[(x ^ static_cast<unsigned char>(c)) & 0xff];
  return ~x;
}

std::string first_event(double wall_time) {
  std::string event;
  put_double(event, wall_time_field, wall_time);
  put_bytes(event, version_field, "brain.Event:2");
  return record(event);
}

std::string start_event(double wall_time, std::int64_t step) {
  std::string event, session;
  put_integer(session, 1, 1);  // SessionLog.status = START
  put_double(event, wall_time_field, wall_time);
  put_integer(event, step_field, step);
  put_bytes(event, session_field, session);
  return record(event);
}

std::string scalar_event(double wall_time, std::int64_t step,
                         const std::vector<std::pair<std::string, float>>& values) {
  std::string event, summary;
  for (const auto& [name, number] : values) {
    std::string value;
    put_bytes(value, 1, name);
    put_float(value, 2, number);
    put_bytes(summary, 1, value);
  }
  put_double(event, wall_time_field, wall_time);
  put_integer(event, step_field, step);
  put_bytes(event, summary_field, summary);
  return record(event);
}

}  // namespace sluice::nn::detail
