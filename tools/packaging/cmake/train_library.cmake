# libtroupe_train, which programs outside of this tree link as Troupe::train: trainings of their own. It
# lies over libtroupe, and brings its public headers and nothing else.
get_property(troupe_folders GLOBAL PROPERTY TROUPE_LIBRARY_FOLDERS)
list(FILTER troupe_folders INCLUDE REGEX "^train/")
set(troupe_objects)
foreach(part IN LISTS troupe_folders)
  troupe_target_name(target ${part})
  list(APPEND troupe_objects $<TARGET_OBJECTS:${target}>)
endforeach()
add_library(troupe_library_train SHARED ${troupe_objects})
add_library(Troupe::train ALIAS troupe_library_train)
target_link_options(troupe_library_train PRIVATE -Wl,-Bsymbolic-functions -Wl,--as-needed)
if(NOT TROUPE_SANITIZE)
  target_link_options(troupe_library_train PRIVATE -Wl,-z,defs)
endif()
target_link_libraries(troupe_library_train
  PRIVATE fmt::fmt Boost::json OpenSSL::Crypto PkgConfig::xxhash TBB::tbb ZLIB::ZLIB PkgConfig::zstd PkgConfig::pcre2 PkgConfig::utf8proc
          PkgConfig::yamlcpp PkgConfig::cairo troupe_dnnl ${GOMP_LIBRARY} ${CMAKE_DL_LIBS}
  PUBLIC troupe_library_actors)
target_include_directories(troupe_library_train SYSTEM INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/train/include>)
set_target_properties(troupe_library_train PROPERTIES
  OUTPUT_NAME troupe_train EXPORT_NAME train
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

if(NOT TROUPE_INSTALL)
  return()
endif()
# Beside libtroupe, wherever that is installed.
set_target_properties(troupe_library_train PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS troupe_library_train EXPORT TroupeTrainTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT train
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/train/include/troupe
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT train FILES_MATCHING PATTERN "*.h")
install(EXPORT TroupeTrainTargets NAMESPACE Troupe:: DESTINATION ${troupe_package_dir} COMPONENT train)
configure_file(${CMAKE_CURRENT_LIST_DIR}/troupe-train.pc.in ${PROJECT_BINARY_DIR}/packaging/troupe-train.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/packaging/troupe-train.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT train)
