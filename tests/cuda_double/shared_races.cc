#include "shared_races.h"

namespace cuda_double {

void SharedRaces::begin_block() {
  meet_block();
  first_epoch_ = epoch_;
}

void SharedRaces::meet_block() {
  ++epoch_;
  warp_epochs_.fill(0);
}

const char* SharedRaces::touch(std::uintptr_t at, std::size_t bytes, unsigned thread, bool reads, bool atomic) {
  const char* wrong = nullptr;
  for (std::uintptr_t end = at + bytes; at < end; ++at) {
    if (!last_line_ || at / kLine != last_) {
      last_ = at / kLine;
      auto& line = lines_[last_];
      if (!line) line = std::make_unique<Line>();
      last_line_ = line.get();
    }
    if (const char* const found = touch((*last_line_)[at % kLine], thread, reads, atomic)) wrong = found;
  }
  return wrong;
}

const char* SharedRaces::touch(Byte& byte, unsigned thread, bool reads, bool atomic) {
  const unsigned warp = thread / 32;
  const std::uint16_t warp_epoch = warp_epochs_[warp];
  const bool written = byte.written >= first_epoch_;
  const char* wrong = nullptr;
  if (byte.written == epoch_ && byte.writer != thread && !(atomic && byte.atomic)) {
    const bool same_warp = byte.writer / 32u == warp;
    if (!same_warp || byte.write_warp_epoch == warp_epoch) {
      wrong = reads ? "that another thread wrote since the last barrier"
                    : "that another thread wrote, too, since the last barrier";
    }
  }
  if (reads) {
    if (!written && !wrong) wrong = "that no thread of the block has written";
    if (byte.read != epoch_) {
      byte.read = epoch_;
      byte.reader = static_cast<std::uint16_t>(thread);
      byte.reader_warp = static_cast<std::uint16_t>(warp);
    } else if (byte.reader_warp != warp) {
      byte.reader = byte.reader_warp = kMany;
    } else if (byte.reader != thread) {
      // Earlier reads of the same warp before its last barrier do not count any more.
      byte.reader = byte.read_warp_epoch == warp_epoch ? kMany : static_cast<std::uint16_t>(thread);
    }
    byte.read_warp_epoch = warp_epoch;
    return wrong;
  }
  if (!wrong && !atomic && byte.read == epoch_ && byte.reader != thread) {
    const bool same_warp = byte.reader_warp == warp;
    if (!same_warp || byte.read_warp_epoch == warp_epoch) wrong = "that another thread read since the last barrier";
  }
  byte.written = epoch_;
  byte.writer = static_cast<std::uint16_t>(thread);
  byte.write_warp_epoch = warp_epoch;
  byte.atomic = atomic;
  return wrong;
}

}  // namespace cuda_double
