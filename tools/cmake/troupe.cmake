# How Troupe's libraries, programs and tests are declared.
#
#   troupe_library(runtime/net SOURCES a.cpp b.cpp DEPS runtime/base EXTERNAL OpenSSL::Crypto)
#   troupe_test(runtime/net SOURCES a_test.cpp DEPS runtime/net)
#
# The link lines are the dependency rules: DEPS are the only folders whose headers the sources may
# include. `tools/check-includes` compares every #include with what is declared here.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The build type of another project is its own affair.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# As a part of another project (add_subdirectory, FetchContent) only the actors are built, and only the
# packages that they need are looked for.
option(TROUPE_BUILD_TRAIN "Build the libraries for training" ${PROJECT_IS_TOP_LEVEL})
option(TROUPE_BUILD_TOOLS "Build the command troupe and the other tools" ${PROJECT_IS_TOP_LEVEL})
option(TROUPE_BUILD_TESTS "Build the test programs" ${PROJECT_IS_TOP_LEVEL})
option(TROUPE_BUILD_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
foreach(part TOOLS EXAMPLES TESTS)
  foreach(needed TRAIN TOOLS)
    if(TROUPE_BUILD_${part} AND NOT TROUPE_BUILD_${needed})
      message(FATAL_ERROR "TROUPE_BUILD_${part}=ON needs TROUPE_BUILD_${needed}=ON")
    endif()
  endforeach()
endforeach()
option(TROUPE_WARNINGS_AS_ERRORS "Compile with -Werror" ${PROJECT_IS_TOP_LEVEL})
set(TROUPE_SANITIZE "" CACHE STRING "Sanitizers to compile with: 'address,undefined' or 'thread'")

# Sources of a library compiled several at once, and what nearly all include compiled once: the cold
# build takes a third of the time. One default for all, so that every build and every test run is of
# the code that users have. Off, single files are compiled, which ccache remembers.
option(TROUPE_UNITY "Compile several sources together, with precompiled headers" ON)
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT TROUPE_UNITY AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# No floating-point contraction: a multiply and an add give the same bits whatever instructions the
# compiler picks, so that results do not depend on the instruction set a kernel was compiled for.
# Members that a designated initialiser leaves out have their defaults: that is what they are for.
add_compile_options(-Wall -Wextra $<$<BOOL:${TROUPE_WARNINGS_AS_ERRORS}>:-Werror>
                    -Wno-missing-field-initializers -ffp-contract=off -fno-math-errno)
# Line numbers for debuggers, but where everything is compiled from nothing: they cost 6 % of that.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
if(TROUPE_UNITY)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2")
endif()
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
# What a sanitizer watches is slow, and far slower where nothing is optimised; lines are all that its
# reports want of the debugger's.
if(TROUPE_SANITIZE)
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Garbage collection of the compiler itself is a tenth of its time on sources this large.
  if(TROUPE_UNITY)
    add_compile_options(--param=ggc-min-expand=100 --param=ggc-min-heapsize=700000)
  endif()
  # GCC 12 reports false positives from inlined standard-library code, also of headers in the programs
  # that include them.
  set(troupe_false_warnings -Wno-maybe-uninitialized -Wno-restrict -Wno-dangling-pointer
      -Wno-stringop-overflow -Wno-array-bounds -Wno-stringop-overread)
  add_compile_options(${troupe_false_warnings})
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety)
endif()
# Sixty programs are linked: gold, which comes with binutils, takes half of the time.
find_program(TROUPE_GOLD ld.gold)
if(TROUPE_GOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT TROUPE_SANITIZE)
  add_link_options(-fuse-ld=gold)
endif()
if(TROUPE_SANITIZE)
  add_compile_options(-fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TROUPE_SANITIZE})
  if(TROUPE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)
  endif()
endif()

# What tools/fuzz builds: every library watched by libFuzzer and the sanitizers. Nothing else is made
# of them, and warnings of a second compiler are no reason not to fuzz.
option(TROUPE_FUZZ "Build the fuzzing program (tests/fuzz); needs clang" OFF)
if(TROUPE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TROUPE_FUZZ needs clang: use tools/fuzz")
  endif()
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -Wno-error)
  add_link_options(-fsanitize=address,undefined)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(CapnProto REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
if(TROUPE_BUILD_TRAIN)
  find_package(TBB REQUIRED)
  find_package(ZLIB REQUIRED)
  pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
  pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
  pkg_check_modules(yamlcpp REQUIRED IMPORTED_TARGET yaml-cpp)
  pkg_check_modules(cairo REQUIRED IMPORTED_TARGET cairo)
  # Debian's oneDNN package config asks for OpenCL's headers, which nothing here needs.
  find_library(DNNL_LIBRARY dnnl REQUIRED)
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h REQUIRED)
  add_library(troupe_dnnl INTERFACE IMPORTED)
  target_link_libraries(troupe_dnnl INTERFACE ${DNNL_LIBRARY})
  target_include_directories(troupe_dnnl INTERFACE ${DNNL_INCLUDE_DIR})
  find_path(CURL_INCLUDE_DIR curl/curl.h REQUIRED)  # its library is loaded when it is needed
  # Header files alone: the singular value decomposition.
  find_package(Eigen3 3.4 REQUIRED NO_MODULE)
endif()
if(TROUPE_BUILD_TOOLS)
  find_package(CLI11 REQUIRED)
endif()
if(TROUPE_BUILD_TESTS)
  find_package(doctest REQUIRED)
endif()

define_property(GLOBAL PROPERTY TROUPE_DEPENDENCY_LINES)
define_property(GLOBAL PROPERTY TROUPE_LIBRARY_FOLDERS)

function(troupe_target_name out folder)
  string(REPLACE "/" "_" name "${folder}")
  set(${out} "troupe_${name}" PARENT_SCOPE)
endfunction()

function(_troupe_link target folder visibility)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "DEPS;EXTERNAL")
  target_include_directories(${target} ${visibility} ${PROJECT_SOURCE_DIR}
                             ${PROJECT_SOURCE_DIR}/runtime/include ${PROJECT_SOURCE_DIR}/actors/include)
  target_compile_features(${target} ${visibility} cxx_std_20)
  if(NOT PROJECT_IS_TOP_LEVEL)  # for the sources of the other project, which have no options of ours
    target_compile_options(${target} INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers;${troupe_false_warnings}>")
  endif()
  foreach(dep IN LISTS arg_DEPS)
    troupe_target_name(dep_target ${dep})
    target_link_libraries(${target} ${visibility} ${dep_target})
  endforeach()
  target_link_libraries(${target} ${visibility} ${arg_EXTERNAL} Threads::Threads)
  string(REPLACE ";" " " deps "${arg_DEPS}")
  set_property(GLOBAL APPEND PROPERTY TROUPE_DEPENDENCY_LINES "${folder}: ${deps}")
endfunction()

# Precompiled headers serve targets whose flags are those of the target that they were made with:
# libraries, test programs, and parts of tests, which know no doctest. Of the project's own headers
# those that nearly all of them include.
set(_troupe_precompiled <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring>
    <deque> <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view> <thread> <variant>
    <vector> <fmt/format.h> <boost/json.hpp> <runtime/base/status.h> <runtime/base/clock.h> <runtime/base/ids.h>)
set(_troupe_precompiled_test <filesystem> <fstream> <doctest/doctest.h> <runtime/base/file_system.h>
    <runtime/base/json.h>)
set(_troupe_precompiled_test_part <troupe/actor.h> <troupe/cluster.h>)
function(_troupe_precompile target kind)
  # Some sources of libraries are optimised always, and the compiler takes no headers that were
  # compiled with less.
  if(NOT TROUPE_UNITY OR (kind STREQUAL "library" AND CMAKE_BUILD_TYPE STREQUAL "Debug"))
    return()
  endif()
  set(holder troupe_precompiled_${kind})
  if(NOT TARGET ${holder})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${holder}.cpp CONTENT "// Precompiled headers.\n")
    add_library(${holder} STATIC ${PROJECT_BINARY_DIR}/${holder}.cpp)
    target_include_directories(${holder} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/runtime/include
                               ${PROJECT_SOURCE_DIR}/actors/include)
    target_link_libraries(${holder} PRIVATE fmt::fmt Boost::json Threads::Threads)
    if(kind STREQUAL "test")
      target_link_libraries(${holder} PRIVATE doctest::doctest)
    endif()
    _troupe_options(${holder} ${kind})
    target_precompile_headers(${holder} PRIVATE ${_troupe_precompiled} ${_troupe_precompiled_${kind}})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${holder})
endfunction()

# What a test program is compiled with: its own code need not be fast, what it tests is. So are the
# parts of tests: programs that a test starts.
function(_troupe_options target kind)
  if(kind MATCHES "^test")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIE)
  endif()
  if(kind MATCHES "^test" AND (CMAKE_BUILD_TYPE STREQUAL "Release" OR TROUPE_SANITIZE))
    target_compile_options(${target} PRIVATE -O0)
    # No assertions that take a debugger to their own line and go on after an exception: those cost
    # a fifth of the time that tests take to compile.
    if(TROUPE_UNITY)
      target_compile_definitions(${target} PRIVATE DOCTEST_CONFIG_SUPER_FAST_ASSERTS
                                 DOCTEST_CONFIG_NO_TRY_CATCH_IN_ASSERTS)
    endif()
  endif()
endfunction()

# What waits for others more than it computes is compiled in less time than what is hot: of the compiler's
# levels that optimise, -Og takes a fifth less time than -O1 and two fifths less than -O2.
function(_troupe_cold target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -Og)
  endif()
endfunction()

# A library: the sources of one folder. Without SOURCES it is header-only. NO_UNITY: sources that
# cannot share a translation unit; PRECOMPILED: they are compiled with the precompiled headers even so.
# COLD: nothing of it is run for each call, row or number. IO_BOUND: it is run for each call, and its
# time is that of the kernel and of other processes: calls take as long with -O1 (tools/bench actors).
# APART: sources that the simulator replaces by its own build of them, with planted mistakes, and that
# are objects of their own therefore.
function(troupe_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_UNITY;PRECOMPILED;COLD;IO_BOUND" "" "SOURCES;APART;DEPS;EXTERNAL;PRIVATE_EXTERNAL")
  troupe_target_name(target ${folder})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES} ${arg_APART})
    _troupe_link(${target} ${folder} PUBLIC DEPS ${arg_DEPS} EXTERNAL ${arg_EXTERNAL})
    target_link_libraries(${target} PRIVATE ${arg_PRIVATE_EXTERNAL})
    set_property(GLOBAL APPEND PROPERTY TROUPE_LIBRARY_FOLDERS ${folder})
    if(TROUPE_UNITY AND NOT arg_NO_UNITY)
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
      if(arg_APART)
        set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
        set_source_files_properties(${arg_APART} PROPERTIES UNITY_GROUP apart)
        set(number 0)
        foreach(source IN LISTS arg_SOURCES)
          math(EXPR batch "${number} / 24")
          math(EXPR number "${number} + 1")
          set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${batch})
        endforeach()
      endif()
    endif()
    if(NOT arg_NO_UNITY OR arg_PRECOMPILED)
      _troupe_precompile(${target} library)
    endif()
    if(arg_COLD)
      _troupe_cold(${target})
    elseif(arg_IO_BOUND AND CMAKE_BUILD_TYPE STREQUAL "Release")
      target_compile_options(${target} PRIVATE -O1)
    endif()
  else()
    add_library(${target} INTERFACE)
    _troupe_link(${target} ${folder} INTERFACE DEPS ${arg_DEPS} EXTERNAL ${arg_EXTERNAL})
  endif()
  # What programs of other projects link: troupe::actors for actors.
  string(REPLACE "/" "_" name "${folder}")
  add_library(troupe::${name} ALIAS ${target})
endfunction()

# A program. PRECOMPILED: with the libraries' precompiled headers, and so with their flags, and cold:
# what it links is not. Those that are a part of a test have the tests' flags.
function(troupe_program name folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "PRECOMPILED" "" "SOURCES;DEPS;EXTERNAL")
  add_executable(${name} ${arg_SOURCES})
  if(folder MATCHES "^tests/" AND NOT TROUPE_FUZZ)  # a part of a test
    _troupe_options(${name} test_part)
    _troupe_precompile(${name} test_part)
  elseif(arg_PRECOMPILED)
    if(TROUPE_UNITY)
      set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${name} PRIVATE -fPIC)
      _troupe_precompile(${name} library)
    endif()
    _troupe_cold(${name})
  endif()
  _troupe_link(${name} ${folder} PRIVATE DEPS ${arg_DEPS} EXTERNAL ${arg_EXTERNAL})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# The tests of one folder: one program, one CTest entry (`ctest -R runtime/net`).
# LABELS marks entries outside the default suite, e.g. `long` or `gpu`; TIMEOUT_S is its deadline;
# SECONDS about how long it takes, where that is long: the longest start first.
function(troupe_test folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_UNITY" "TIMEOUT_S;SECONDS" "SOURCES;DEPS;EXTERNAL;LABELS")
  string(REPLACE "/" "_" name "test_${folder}")
  add_executable(${name} ${arg_SOURCES})
  _troupe_options(${name} test)
  _troupe_precompile(${name} test)
  if(TROUPE_UNITY AND NOT arg_NO_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32)
  endif()
  _troupe_link(${name} tests/${folder} PRIVATE DEPS ${arg_DEPS} tests/support
               EXTERNAL ${arg_EXTERNAL})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  if(NOT arg_TIMEOUT_S)
    set(arg_TIMEOUT_S 120)
  endif()
  if(TROUPE_SANITIZE)
    math(EXPR arg_TIMEOUT_S "10 * ${arg_TIMEOUT_S}")
  endif()
  add_test(NAME ${folder} COMMAND ${name})
  set_tests_properties(${folder} PROPERTIES TIMEOUT ${arg_TIMEOUT_S} LABELS "${arg_LABELS}"
    ENVIRONMENT "TROUPE_SOURCE_DIR=${PROJECT_SOURCE_DIR};TROUPE_BIN_DIR=${PROJECT_BINARY_DIR}/bin")
  if(TROUPE_SANITIZE MATCHES "thread")
    set_property(TEST ${folder} APPEND PROPERTY ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan_suppressions.txt")
  endif()
  if(arg_SECONDS)
    set_tests_properties(${folder} PROPERTIES COST ${arg_SECONDS})
  endif()
endfunction()

# The cases of a test program that are named "long: …" and skipped otherwise: of the long suites.
function(troupe_long_cases folder timeout_s)
  string(REPLACE "/" "_" name "test_${folder}")
  add_test(NAME ${folder}_long COMMAND ${name} "--test-case=long:*" --no-skip)
  set_tests_properties(${folder}_long PROPERTIES TIMEOUT ${timeout_s} LABELS long
    ENVIRONMENT "TROUPE_SOURCE_DIR=${PROJECT_SOURCE_DIR};TROUPE_BIN_DIR=${PROJECT_BINARY_DIR}/bin")
endfunction()

# Targets that only a machine with a GPU runs, and their tests: `tools/test` leaves them out elsewhere.
# A `troupe_test` among them has the label gpu-parts.
function(troupe_gpu_parts)
  set_target_properties(${ARGN} PROPERTIES TROUPE_GPU_PART TRUE)
endfunction()

# The target default_suite: all that is built by default, but the GPU's parts.
function(_troupe_add_to_default_suite folder)
  get_directory_property(targets DIRECTORY ${folder} BUILDSYSTEM_TARGETS)
  get_directory_property(below DIRECTORY ${folder} SUBDIRECTORIES)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(left_out ${target} EXCLUDE_FROM_ALL)
    get_target_property(gpu ${target} TROUPE_GPU_PART)
    if(type MATCHES "EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY" AND NOT left_out AND NOT gpu)
      add_dependencies(default_suite ${target})
    endif()
  endforeach()
  foreach(each IN LISTS below)
    _troupe_add_to_default_suite(${each})
  endforeach()
endfunction()
function(troupe_default_suite)
  add_custom_target(default_suite)
  _troupe_add_to_default_suite(${PROJECT_SOURCE_DIR})
endfunction()

# Writes FOLDER: DEPS lines for tools/check-includes.
function(troupe_write_dependency_list)
  get_property(lines GLOBAL PROPERTY TROUPE_DEPENDENCY_LINES)
  string(REPLACE ";" "\n" text "${lines}")
  file(WRITE ${PROJECT_BINARY_DIR}/dependencies.txt "${text}\n")
endfunction()
