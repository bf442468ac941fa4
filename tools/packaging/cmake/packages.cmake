# What `cmake --install` and `tools/package` make of the command: component cli, and cuda where it was built.
if(NOT TROUPE_INSTALL OR NOT TROUPE_BUILD_TOOLS)
  return()
endif()
set(troupe_pages ${PROJECT_BINARY_DIR}/packaging/pages)
add_custom_command(OUTPUT ${troupe_pages}/man1/troupe.1
  COMMAND ${PROJECT_SOURCE_DIR}/tools/packaging/man_and_completion $<TARGET_FILE:troupe> ${troupe_pages}
  DEPENDS troupe ${PROJECT_SOURCE_DIR}/tools/packaging/man_and_completion VERBATIM
  COMMENT "Manual pages and completions")
add_custom_target(troupe_pages DEPENDS ${troupe_pages}/man1/troupe.1)

install(TARGETS troupe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cli)
install(PROGRAMS ${PROJECT_SOURCE_DIR}/tools/troupe-shims DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cli)
install(DIRECTORY ${troupe_pages}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT cli OPTIONAL)
install(FILES ${troupe_pages}/bash/troupe
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT cli OPTIONAL)
install(FILES ${troupe_pages}/zsh/_troupe
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT cli OPTIONAL)
install(FILES ${PROJECT_SOURCE_DIR}/tools/packaging/systemd/troupe-head.service
  ${PROJECT_SOURCE_DIR}/tools/packaging/systemd/troupe-worker.service
  DESTINATION lib/systemd/system COMPONENT cli)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/troupe COMPONENT cli)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libtroupe-dev COMPONENT runtime)
if(TARGET troupe_cuda)
  install(TARGETS troupe_cuda LIBRARY DESTINATION lib/troupe COMPONENT cuda)
endif()

# Debian packages: troupe (the command), libtroupe-dev (the library, its headers, CMake and pkg-config
# files) and libtroupe-train-dev (the same of what trains). Dependencies are what the binaries were linked with, as dpkg-shlibdeps finds them.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME troupe)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The Troupe developers")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL cli runtime train)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_CLI_PACKAGE_NAME troupe)
set(CPACK_DEBIAN_CLI_PACKAGE_SECTION science)
set(CPACK_DEBIAN_CLI_PACKAGE_DEPENDS libcurl4)  # loaded when something is downloaded
set(CPACK_COMPONENT_CLI_DESCRIPTION
  "Actors over processes and machines, and distributed training on them\nThe command troupe: trainings by LLaMA-Factory's configurations, clusters, ranks, fault injection.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libtroupe-dev)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS "libboost1.81-dev | libboost-dev (>= 1.75)")  # the headers of Boost.PFR
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS "troupe (= ${PROJECT_VERSION}), cmake, g++")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_GENERATE_SHLIBS OFF)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/tools/packaging/triggers)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
  "Actors in processes of their own, placed, restarted and called over a cluster\nThe C++20 library: headers, shared library, CMake and pkg-config files.")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libtroupe-train-dev COMPONENT train)
set(CPACK_DEBIAN_TRAIN_PACKAGE_NAME libtroupe-train-dev)
set(CPACK_DEBIAN_TRAIN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_TRAIN_PACKAGE_DEPENDS "libtroupe-dev (= ${PROJECT_VERSION}), libcurl4")
set(CPACK_DEBIAN_TRAIN_PACKAGE_GENERATE_SHLIBS OFF)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)  # libtroupe is the other package's
set(CPACK_DEBIAN_TRAIN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/tools/packaging/triggers)
set(CPACK_COMPONENT_TRAIN_DESCRIPTION
  "Distributed training of a program's own, on actors that survive\nLosses, optimizers, data, models and callbacks in C++20: headers, shared library, CMake and pkg-config files.")
include(CPack)
