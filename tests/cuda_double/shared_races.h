// Who of a block has touched each byte of shared memory since the last barrier.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace cuda_double {

/// One for each thread of the host that runs blocks. A barrier of the block orders everything; one of a warp, what the
/// warp's own lanes do. Shuffles order nothing.
class SharedRaces {
 public:
  void begin_block();
  void meet_block();
  void meet_warp(unsigned warp) { ++warp_epochs_[warp]; }
  /// Enters an access by the block's thread of that number. Returns what is wrong with it, or null.
  const char* touch(std::uintptr_t at, std::size_t bytes, unsigned thread, bool reads, bool atomic);

 private:
  static constexpr std::uint16_t kMany = 0xFFFF;
  static constexpr std::size_t kLine = 64;
  /// The last write of a byte, and the reads since the last barrier.
  struct Byte {
    std::uint32_t written = 0, read = 0;   ///< epochs of the block
    std::uint16_t writer = 0, reader = 0;  ///< threads; several readers: kMany
    std::uint16_t reader_warp = 0;         ///< of all readers, or kMany
    std::uint16_t write_warp_epoch = 0, read_warp_epoch = 0;
    bool atomic = false;  ///< so was the last write
  };
  using Line = std::array<Byte, kLine>;
  const char* touch(Byte& byte, unsigned thread, bool reads, bool atomic);

  std::unordered_map<std::uintptr_t, std::unique_ptr<Line>> lines_;
  std::uintptr_t last_ = 0;
  Line* last_line_ = nullptr;
  std::uint32_t epoch_ = 1, first_epoch_ = 1;  ///< rises over all blocks
  std::array<std::uint16_t, 32> warp_epochs_{};
};

}  // namespace cuda_double
