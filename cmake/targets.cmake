# Libraries: the engine alone, and beside it the explorer for tests; pipeline schedules alone; all of Sluice on top.
file(GLOB SLUICE_ENGINE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/*.cc)
add_library(sluice_engine ${SLUICE_ENGINE_SOURCES})
add_library(sluice::engine ALIAS sluice_engine)
set_target_properties(sluice_engine PROPERTIES EXPORT_NAME engine)
target_include_directories(sluice_engine PUBLIC
  $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)
target_include_directories(sluice_engine SYSTEM PRIVATE ${SLUICE_CONCURRENTQUEUE_INCLUDE})
target_link_libraries(sluice_engine PUBLIC Threads::Threads TBB::tbb PRIVATE $<BUILD_INTERFACE:sluice_settings>)
target_compile_features(sluice_engine PUBLIC cxx_std_20)
set_source_files_properties(${PROJECT_SOURCE_DIR}/engine/report.cc PROPERTIES
  COMPILE_DEFINITIONS "SLUICE_VERSION=\"${PROJECT_VERSION}\"")
# Read once, not by every file, which halves what reading headers costs. Not in a release build: there GCC 12 warns of
# the library's string operations where it inlines them from a precompiled header; and so that build holds that each
# file includes what it uses. Not with clang, whose precompiled headers hold the checkout's path: nothing that is compiled
# with one is found in ccache by another checkout.
set(SLUICE_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <condition_variable> <functional> <map> <memory> <mutex>
    <optional> <span> <string> <thread> <unordered_map> <vector>)
set(SLUICE_PRECOMPILE OFF)
if((SLUICE_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug") AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(SLUICE_PRECOMPILE ON)
  target_precompile_headers(sluice_engine PRIVATE ${SLUICE_COMMON_HEADERS})
endif()

# The schedule explorer: a program that links it may run under SLUICE_ENGINE=explore:SEED. The engine knows it by a weak
# symbol, and from a static library the linker takes what it is asked for.
file(GLOB SLUICE_EXPLORE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/explore/*.cc)
add_library(sluice_explore ${SLUICE_EXPLORE_SOURCES})
add_library(sluice::explore ALIAS sluice_explore)
set_target_properties(sluice_explore PROPERTIES EXPORT_NAME explore)
target_include_directories(sluice_explore SYSTEM PRIVATE ${SLUICE_CONCURRENTQUEUE_INCLUDE})
target_link_libraries(sluice_explore PUBLIC sluice_engine PRIVATE $<BUILD_INTERFACE:sluice_settings>)
target_link_options(sluice_explore INTERFACE "LINKER:--undefined=sluice_explore_linked")
if(SLUICE_PRECOMPILE)
  target_precompile_headers(sluice_explore PRIVATE ${SLUICE_COMMON_HEADERS})
endif()

# Pipeline schedules. They need no engine: what they include of its folder is a function on text.
file(GLOB SLUICE_SCHEDULE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/schedule/*.cc)
add_library(sluice_schedule ${SLUICE_SCHEDULE_SOURCES})
add_library(sluice::schedule ALIAS sluice_schedule)
set_target_properties(sluice_schedule PROPERTIES EXPORT_NAME schedule)
target_include_directories(sluice_schedule PUBLIC
  $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(sluice_schedule
  PRIVATE $<BUILD_INTERFACE:sluice_settings> $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
target_compile_features(sluice_schedule PUBLIC cxx_std_20)
if(SLUICE_PRECOMPILE)
  target_precompile_headers(sluice_schedule PRIVATE ${SLUICE_COMMON_HEADERS})
endif()

# The providers of devices that need no library: for arrays, and for those who use the engine alone.
file(GLOB SLUICE_PROVIDER_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/resources/providers/*.cc
  ${PROJECT_SOURCE_DIR}/resources/cuda/*.cc)
add_library(sluice_providers ${SLUICE_PROVIDER_SOURCES})
add_library(sluice::providers ALIAS sluice_providers)
set_target_properties(sluice_providers PROPERTIES EXPORT_NAME providers)
target_link_libraries(sluice_providers PUBLIC sluice_engine ${CMAKE_DL_LIBS} PRIVATE $<BUILD_INTERFACE:sluice_settings>)

# For tests: what observes the providers' streams.
file(GLOB SLUICE_TESTING_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/resources/testing/*.cc)
add_library(sluice_testing STATIC EXCLUDE_FROM_ALL ${SLUICE_TESTING_SOURCES})
target_link_libraries(sluice_testing PUBLIC sluice_providers PRIVATE sluice_settings)

file(GLOB SLUICE_SOURCES CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/resources/*.cc ${PROJECT_SOURCE_DIR}/ndarray/*.cc ${PROJECT_SOURCE_DIR}/ndarray/formats/*.cc
  ${PROJECT_SOURCE_DIR}/operators/*.cc ${PROJECT_SOURCE_DIR}/operators/backends/*.cc
  ${PROJECT_SOURCE_DIR}/operators/backends/reference/*.cc
  ${PROJECT_SOURCE_DIR}/operators/backends/cpu/*.cc ${PROJECT_SOURCE_DIR}/autograd/*.cc ${PROJECT_SOURCE_DIR}/nn/*.cc ${PROJECT_SOURCE_DIR}/nn/*/*.cc
  ${PROJECT_SOURCE_DIR}/parallel/*.cc)
# Nobody reads the exception flags of floating-point arithmetic: without them GCC computes both sides of a choice, and so
# makes vector code of exp and its like for AVX2.
file(GLOB sluice_cpu_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/operators/backends/cpu/*.cc)
set_source_files_properties(${sluice_cpu_kernels} PROPERTIES COMPILE_OPTIONS -fno-trapping-math)
add_library(sluice ${SLUICE_SOURCES})
add_library(sluice::sluice ALIAS sluice)
target_link_libraries(sluice PUBLIC sluice_providers sluice_engine sluice_schedule
  PRIVATE $<BUILD_INTERFACE:sluice_settings> ZLIB::ZLIB PNG::PNG JPEG::JPEG DNNL::dnnl OpenBLAS::OpenBLAS
          $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
if(SLUICE_PRECOMPILE)
  target_precompile_headers(sluice PRIVATE ${SLUICE_COMMON_HEADERS})
endif()

# The CUDA backend: a library that programs load at run time (docs/decisions/0012-cuda.md). The same list of files is
# compiled for the double that the tests run (tests/cuda_double); tests/system/cuda_sources_test.cc holds that.
file(GLOB SLUICE_CUDA_SOURCES CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/resources/cuda/backend/*.cc ${PROJECT_SOURCE_DIR}/operators/backends/cuda/*.cc
  ${PROJECT_SOURCE_DIR}/operators/backends/cuda/*.cu)
if(SLUICE_WITH_CUDA)
  add_library(sluice_cuda MODULE ${SLUICE_CUDA_SOURCES})
  target_include_directories(sluice_cuda PRIVATE ${PROJECT_BINARY_DIR}/include)
  list(JOIN SLUICE_CUDA_ARCHITECTURES " " built_for)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/resources/cuda/backend/library.cc PROPERTIES
    COMPILE_DEFINITIONS "SLUICE_CUDA_BUILT_FOR=\"${built_for}\"")
  set_target_properties(sluice_cuda PROPERTIES CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    CUDA_ARCHITECTURES "${SLUICE_CUDA_ARCHITECTURES}" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  # One rounding for each operation, as on the CPU, so that bits can be compared.
  target_compile_options(sluice_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --expt-extended-lambda -fmad=false -ftz=false -prec-div=true
      -prec-sqrt=true $<$<BOOL:${SLUICE_WERROR}>:-Werror=all-warnings>
      -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow $<$<BOOL:${SLUICE_WERROR}>:-Werror> -ffp-contract=off>)
  target_link_libraries(sluice_cuda PRIVATE CUDA::cudart_static CUDA::cublasLt ${SLUICE_CUDNN})
  # It takes nothing from the program that loads it.
  target_link_options(sluice_cuda PRIVATE -Wl,-z,defs)
  # Programs find it where it was built, or installed. (-Wl would cut a folder at its commas.)
  target_link_options(sluice_providers PUBLIC
    "$<BUILD_INTERFACE:SHELL:-Xlinker -rpath -Xlinker \"${PROJECT_BINARY_DIR}\">"
    "$<INSTALL_INTERFACE:SHELL:-Xlinker -rpath -Xlinker \"$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}\">")
endif()
