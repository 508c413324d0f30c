#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "sluice/schedule/schedule_text.h"
#include "sluice/tests/fuzz/fuzz_target.h"

/// Any text is a schedule or one short line with its place; what was read is written and read again as it is. The text
/// may ask for the memory that schedule_text.h says.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string file = "mine.txt";
  parallel::Schedule read;
  std::string said;
  const std::size_t before = fuzz::held;
  fuzz::peak = before;
  try {
    read = parallel::parse_schedule(text, file);
  } catch (const std::invalid_argument& e) {
    said = e.what();
  }
  const std::size_t took = fuzz::peak - before, most = 200 * (size + (std::size_t{1} << 17));
  if (took > most) {
    std::fprintf(stderr, "a text of %zu bytes took %zu bytes of memory\n", size, took);
    std::abort();
  }
  if (said.empty() ? !(parallel::parse_schedule(parallel::to_text(read, true), file) == read)
                   : said.size() > 200 || said.find('\n') != std::string::npos || !said.starts_with(file + ":") ||
                         said.find_first_of("123456789") != file.size() + 1) {
    std::fprintf(stderr, "read and written it is another schedule, or the line is wrong: '%s'\n", said.c_str());
    std::abort();
  }
  return 0;
}
