# libtroupe, which programs outside of this tree link as Troupe::actors: by find_package(Troupe), by
# pkg-config, by FetchContent or add_subdirectory. It brings its public headers and nothing else; what it
# is made of stays inside.
set(troupe_parts runtime/base runtime/collective runtime/memory runtime/net runtime/process runtime/wire scheduler/policy
    scheduler/packages scheduler/control scheduler/client scheduler/head scheduler/objects scheduler/node scheduler/embedded actors/session actors
    actors/groups actors/embedded actors/chaos_cluster)
set(troupe_objects)
foreach(part IN LISTS troupe_parts)
  troupe_target_name(target ${part})
  list(APPEND troupe_objects $<TARGET_OBJECTS:${target}>)
endforeach()
add_library(troupe_library_actors SHARED ${troupe_objects})
add_library(Troupe::actors ALIAS troupe_library_actors)
# The library's own code may refer to its own functions directly: nobody replaces them.
target_link_options(troupe_library_actors PRIVATE -Wl,-Bsymbolic-functions)
target_link_libraries(troupe_library_actors
  PRIVATE fmt::fmt Boost::json CapnProto::capnp OpenSSL::SSL OpenSSL::Crypto PkgConfig::xxhash
  PUBLIC Threads::Threads)
target_compile_features(troupe_library_actors INTERFACE cxx_std_20)
target_include_directories(troupe_library_actors SYSTEM INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/runtime/include>
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/actors/include>)
# Before 1.0 a minor version may change the library's interface: examples/guide/projects.md.
set_target_properties(troupe_library_actors PROPERTIES
  OUTPUT_NAME troupe EXPORT_NAME actors
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

option(TROUPE_INSTALL "Rules for cmake --install" ${PROJECT_IS_TOP_LEVEL})
if(NOT TROUPE_INSTALL)
  return()
endif()

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(troupe_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
install(TARGETS troupe_library_actors EXPORT TroupeTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/runtime/include/troupe ${PROJECT_SOURCE_DIR}/actors/include/troupe
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT runtime FILES_MATCHING PATTERN "*.h")
install(EXPORT TroupeTargets NAMESPACE Troupe:: DESTINATION ${troupe_package_dir} COMPONENT runtime)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TroupeConfig.cmake.in
  ${PROJECT_BINARY_DIR}/packaging/TroupeConfig.cmake INSTALL_DESTINATION ${troupe_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/packaging/TroupeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
# Found from where the file lies, so that --prefix and a move of the folder do no harm.
file(RELATIVE_PATH troupe_pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/troupe.pc.in ${PROJECT_BINARY_DIR}/packaging/troupe.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/packaging/TroupeConfig.cmake
  ${PROJECT_BINARY_DIR}/packaging/TroupeConfigVersion.cmake
  DESTINATION ${troupe_package_dir} COMPONENT runtime)
install(FILES ${PROJECT_BINARY_DIR}/packaging/troupe.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT runtime)
