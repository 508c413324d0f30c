// What ThreadSanitizer is told about oneTBB, which is not built with it. Only reports whose innermost frame is oneTBB's
// own are passed over; the engine's code is looked at wherever it runs.

extern "C" const char* __tsan_default_suppressions();

const char* __tsan_default_suppressions() {
  return
      // Allocations and comparisons that the library makes for itself.
      "called_from_lib:libtbb.so\n"
      "race_top:libtbb.so\n"
      // Header-only parts (task objects): written here, handed over inside of the library.
      "race_top:oneapi/tbb/\n"
      "race_top:tbb::detail::\n"
      // Counts down the nodes of a loop, with std::atomic as its innermost frame; calls nothing of ours.
      "race:tbb::detail::d1::fold_tree\n";
}
