# Two libraries: the engine alone, and all of Sluice on top of it.
file(GLOB SLUICE_ENGINE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/*.cc)
add_library(sluice_engine ${SLUICE_ENGINE_SOURCES})
add_library(sluice::engine ALIAS sluice_engine)
set_target_properties(sluice_engine PROPERTIES EXPORT_NAME engine)
target_include_directories(sluice_engine PUBLIC
  $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)
target_include_directories(sluice_engine SYSTEM PRIVATE ${SLUICE_CONCURRENTQUEUE_DIR})
target_link_libraries(sluice_engine PUBLIC Threads::Threads TBB::tbb PRIVATE $<BUILD_INTERFACE:sluice_settings>)
target_compile_features(sluice_engine PUBLIC cxx_std_20)

file(GLOB SLUICE_SOURCES CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/resources/*.cc ${PROJECT_SOURCE_DIR}/ndarray/*.cc ${PROJECT_SOURCE_DIR}/ndarray/formats/*.cc
  ${PROJECT_SOURCE_DIR}/operators/*.cc ${PROJECT_SOURCE_DIR}/operators/backends/reference/*.cc
  ${PROJECT_SOURCE_DIR}/operators/backends/cpu/*.cc ${PROJECT_SOURCE_DIR}/autograd/*.cc ${PROJECT_SOURCE_DIR}/nn/*.cc
  ${PROJECT_SOURCE_DIR}/parallel/*.cc)
add_library(sluice ${SLUICE_SOURCES})
add_library(sluice::sluice ALIAS sluice)
target_link_libraries(sluice PUBLIC sluice_engine
  PRIVATE $<BUILD_INTERFACE:sluice_settings> ZLIB::ZLIB DNNL::dnnl OpenBLAS::OpenBLAS
          $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
if(SLUICE_WITH_CUDA)
  target_compile_definitions(sluice PRIVATE SLUICE_WITH_CUDA=1)
endif()
