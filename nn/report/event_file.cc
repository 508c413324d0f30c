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
  char bytes[sizeof(T)];
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<char>(x >> 8 * i & 0xff);
  to.append(bytes, sizeof bytes);
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
void put_size(std::string& to, unsigned field, std::size_t size) {  // of the bytes behind it
  put_tag(to, field, 2);
  put_varint(to, size);
}
void put_bytes(std::string& to, unsigned field, std::string_view bytes) {
  put_size(to, field, bytes.size());
  to += bytes;
}
/// Bytes of such a field, whose number is below 16, with its tag and size.
std::size_t field_size(std::size_t size) { return 1 + (std::bit_width(size | 1) + 6) / 7 + size; }

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

/// Puts a record behind `to`, whose event `put` appends.
template <class F>
void add_record(std::string& to, const F& put) {
  const std::size_t begin = to.size(), head = sizeof(std::uint64_t) + sizeof(std::uint32_t);
  to.append(head, '\0');
  put();
  const std::string_view event = std::string_view(to).substr(begin + head);
  const std::uint32_t checksum = masked(crc32c(event));
  std::string length;
  put_fixed(length, std::uint64_t{event.size()});
  put_fixed(length, masked(crc32c(length)));
  to.replace(begin, head, length);
  put_fixed(to, checksum);
}

enum EventField : unsigned {
  wall_time_field = 1,
  step_field = 2,
  version_field = 3,
  summary_field = 5,
  session_field = 7
};

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t x = ~0U;
  for (const char c : bytes) x = x >> 8 ^ kTable[(x ^ static_cast<unsigned char>(c)) & 0xff];
  return ~x;
}

std::string first_event(double wall_time) {
  std::string bytes;
  add_record(bytes, [&] {
    put_double(bytes, wall_time_field, wall_time);
    put_bytes(bytes, version_field, "brain.Event:2");
  });
  return bytes;
}

std::string start_event(double wall_time, std::int64_t step) {
  std::string bytes, session;
  put_integer(session, 1, 1);  // SessionLog.status = START
  add_record(bytes, [&] {
    put_double(bytes, wall_time_field, wall_time);
    put_integer(bytes, step_field, step);
    put_bytes(bytes, session_field, session);
  });
  return bytes;
}

void add_scalar_event(std::string& to, double wall_time, std::int64_t step,
                      const std::vector<std::pair<std::string_view, float>>& values) {
  constexpr std::size_t number_size = 1 + sizeof(float);
  std::size_t summary_size = 0;
  for (const auto& [name, number] : values) summary_size += field_size(field_size(name.size()) + number_size);
  std::string record;  // apart: without memory there is none of it in the file
  record.reserve(64 + summary_size);
  add_record(record, [&] {
    put_double(record, wall_time_field, wall_time);
    put_integer(record, step_field, step);
    put_size(record, summary_field, summary_size);
    for (const auto& [name, number] : values) {
      put_size(record, 1, field_size(name.size()) + number_size);
      put_bytes(record, 1, name);
      put_float(record, 2, number);
    }
  });
  to += record;
}

}  // namespace sluice::nn::detail
