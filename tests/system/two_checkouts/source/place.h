// A header that knows its own name.
#pragma once

#include <source_location>

inline const char* place() { return std::source_location::current().file_name(); }
