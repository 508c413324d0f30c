# Every dependency comes from the distribution; docs/dependencies.md says why each is here.
find_package(Threads REQUIRED)
find_package(TBB REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(JPEG REQUIRED)
find_package(dnnl REQUIRED)
# Where it lies in Debian 12, in Debian 13, and where its own installation puts it.
find_path(SLUICE_CONCURRENTQUEUE_INCLUDE concurrentqueue.h
  PATH_SUFFIXES concurrentqueue concurrentqueue/moodycamel moodycamel REQUIRED)
list(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
find_package(OpenBLAS MODULE REQUIRED)
find_package(nlohmann_json 3 REQUIRED)
if(SLUICE_TESTS)
  find_package(GTest REQUIRED)
endif()
if(SLUICE_BENCH)
  find_package(benchmark REQUIRED)
endif()
