# The installed package: public headers under include/sluice/ in the folders they have here, the libraries, and
# find_package(sluice [COMPONENTS engine|schedule]) for sluice::sluice, or sluice::engine, sluice::providers and
# sluice::explore, or sluice::schedule alone.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(SLUICE_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)

# The headers are a component of their own, for which nothing need be built.
install(FILES ${PROJECT_SOURCE_DIR}/sluice.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice COMPONENT headers)
foreach(folder engine schedule resources ndarray operators autograd nn parallel)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice COMPONENT headers
    FILES_MATCHING PATTERN "*.h" PATTERN "*.inc" PATTERN backends EXCLUDE PATTERN backend EXCLUDE PATTERN detail EXCLUDE
    PATTERN explore EXCLUDE PATTERN testing EXCLUDE)
endforeach()
# What engine.h is made of, and what lines that define operators are.
install(FILES ${PROJECT_SOURCE_DIR}/engine/detail/core_base.h ${PROJECT_SOURCE_DIR}/engine/detail/engine_calls.h
  ${PROJECT_SOURCE_DIR}/engine/detail/forks.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice/engine/detail COMPONENT headers)
# For programs under ThreadSanitizer (docs/embedding.md).
install(FILES ${PROJECT_SOURCE_DIR}/tests/tsan.supp DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice)

# Three export sets, so that one who wants the engine alone needs no BLAS and no oneDNN, and one who wants schedules alone
# needs nothing.
set_target_properties(sluice_engine sluice_explore sluice_schedule sluice_providers sluice PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH "$ORIGIN")
install(TARGETS sluice_engine sluice_explore sluice_providers EXPORT sluiceEngineTargets)
install(TARGETS sluice_schedule EXPORT sluiceScheduleTargets)
install(TARGETS sluice EXPORT sluiceTargets)
if(SLUICE_WITH_CUDA)
  # Where cuDNN and cuBLASLt were found.
  get_filename_component(cudnn_folder "${SLUICE_CUDNN}" DIRECTORY)
  set_target_properties(sluice_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;${cudnn_folder};${CUDAToolkit_LIBRARY_DIR}")
  install(TARGETS sluice_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(EXPORT sluiceEngineTargets NAMESPACE sluice:: DESTINATION ${SLUICE_CONFIG_DIR})
install(EXPORT sluiceScheduleTargets NAMESPACE sluice:: DESTINATION ${SLUICE_CONFIG_DIR})
install(EXPORT sluiceTargets NAMESPACE sluice:: DESTINATION ${SLUICE_CONFIG_DIR})

get_target_property(SLUICE_LIBRARY_TYPE sluice TYPE)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/sluiceConfig.cmake.in
  ${PROJECT_BINARY_DIR}/sluiceConfig.cmake INSTALL_DESTINATION ${SLUICE_CONFIG_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sluiceConfig.cmake ${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FindOpenBLAS.cmake DESTINATION ${SLUICE_CONFIG_DIR})

# For builds without CMake: pkg-config --cflags --libs sluice. The folders count from where the file lies, so that an
# installation may be moved. What a static library leaves to the program's link is named in full: not all of it has a .pc
# file of its own.
set(SLUICE_PC_PRIVATE "")
if(SLUICE_LIBRARY_TYPE STREQUAL "STATIC_LIBRARY")
  set(SLUICE_PC_PRIVATE "-ldnnl \"${OpenBLAS_LIBRARY}\" -lpng -ljpeg -lz ")
endif()
set(SLUICE_PC_RPATH "")
if(SLUICE_WITH_CUDA)
  set(SLUICE_PC_RPATH "-Wl,-rpath,\${libdir} ")  # there libsluice_cuda.so is looked for
endif()
file(RELATIVE_PATH prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix "${prefix}")
set(SLUICE_PC_PREFIX "\${pcfiledir}/${prefix}")
# Folders that were given in full, as some distributions do, stay where they are.
foreach(folder LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${folder}}")
    set(SLUICE_PC_${folder} "${CMAKE_INSTALL_${folder}}")
    set(SLUICE_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
  else()
    set(SLUICE_PC_${folder} "\${prefix}/${CMAKE_INSTALL_${folder}}")
  endif()
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/sluice.pc.in ${PROJECT_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
