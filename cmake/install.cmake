# The installed package: public headers under include/sluice/ in the folders they have here, the libraries, and
# find_package(sluice [COMPONENTS engine|schedule]) for sluice::sluice, or sluice::engine, sluice::providers and
# sluice::explore, or sluice::schedule alone.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(SLUICE_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)

install(FILES ${PROJECT_SOURCE_DIR}/sluice.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice)
foreach(folder engine schedule resources ndarray operators autograd nn parallel)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice
    FILES_MATCHING PATTERN "*.h" PATTERN "*.inc" PATTERN backends EXCLUDE PATTERN backend EXCLUDE PATTERN detail EXCLUDE
    PATTERN explore EXCLUDE PATTERN testing EXCLUDE)
endforeach()
# What engine.h is made of.
install(FILES ${PROJECT_SOURCE_DIR}/engine/detail/core_base.h ${PROJECT_SOURCE_DIR}/engine/detail/engine_calls.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice/engine/detail)

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
