// Tables of numbers in text: comma-separated values (RFC 4180), by columns.
#pragma once

#include <filesystem>
#include <map>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/ndarray/formats/host_tensor.h"

namespace sluice {

struct CsvOptions {
  char delimiter = ',';
  bool header = true;                        ///< the first line has the columns' names; else they are "0", "1", ...
  DType dtype = DType::f64;                  ///< of the columns: f64, f32, i64, i32 or u8
  std::map<std::string, DType> dtypes = {};  ///< of some of them
  std::vector<std::string> only = {};        ///< read these, in this order; others may hold any text. Empty: all
  std::vector<std::string> missing = {};     ///< fields that are NaN in f64 and f32, such as {"", "NA", "?"}
};

using CsvColumns = std::vector<std::pair<std::string, HostTensor>>;

/// Columns of one length, (n,), n >= 0. Lines end with LF or CRLF, the last one also without; empty ones are passed
/// over, but behind the first line only where there are several columns. Fields may stand in double quotes, and then
/// hold the delimiter, line ends, and quotes that are doubled; spaces and tabs around others do not count. Numbers are
/// in C's form whatever the locale (also inf and nan), and rounded once: to 0 where they are too small for the dtype.
/// Throws FormatError, "PATH:LINE:COLUMN: ..." (bytes, counted from 1), where a line has more or fewer fields than the
/// first, a field is no number of its dtype or too large for it, a quote is not closed, two columns share a name, or
/// one of `only` and `dtypes` is not there; and std::invalid_argument for options out of range. Pure.
CsvColumns parse_csv(std::string_view text, const CsvOptions& options = {},
                     const std::filesystem::path& path = "a text in memory");

/// The same of a file. Blocks.
CsvColumns load_csv(const std::filesystem::path& path, const CsvOptions& options = {},
                    std::source_location where = std::source_location::current());

}  // namespace sluice
