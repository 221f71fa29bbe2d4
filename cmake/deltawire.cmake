# One static library a folder, with its unit tests beside it.

# deltawire_library(NAME SOURCES a.cc ... TESTS a_test.cc ... DEPS targets ...)
#   library deltawire_NAME from SOURCES; test program NAME_test from TESTS.
#   DEPS are public and may only name folders of a lower rank (tools/check_layers.py enforces the includes).
function(deltawire_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;TESTS;DEPS;TEST_DEPS" ${ARGN})
  add_library(deltawire_${name} STATIC ${ARG_SOURCES})
  target_compile_features(deltawire_${name} PUBLIC cxx_std_20)
  target_include_directories(deltawire_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                                                      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  target_link_libraries(deltawire_${name} PUBLIC ${ARG_DEPS})
  set_target_properties(deltawire_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON
                                                     VISIBILITY_INLINES_HIDDEN ON)
  install(TARGETS deltawire_${name} EXPORT deltawire ARCHIVE COMPONENT devel)
  set_property(GLOBAL APPEND PROPERTY DELTAWIRE_LIBRARIES deltawire_${name})
  if(DELTAWIRE_TESTS AND ARG_TESTS)
    add_executable(${name}_test ${ARG_TESTS})
    target_link_libraries(${name}_test PRIVATE deltawire_${name} ${ARG_TEST_DEPS} GTest::gtest_main)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}." PROPERTIES LABELS unit TIMEOUT 120
                         DISCOVERY_TIMEOUT 60)
  endif()
endfunction()

# deltawire_fuzz(NAME SOURCE DEPS targets ...)
#   SOURCE defines LLVMFuzzerTestOneInput. With DELTAWIRE_FUZZ: the libFuzzer program NAME under build/fuzz/fuzz.
#   Otherwise: the same code behind a main that runs every file of tests/fuzz/NAME once (label fuzz-regress),
#   so that an input that ever broke a decoder is tried in each test run.
function(deltawire_fuzz name source)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  set(corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/${name})
  if(DELTAWIRE_FUZZ)
    add_executable(${name} ${source})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzzers ${name})
  elseif(DELTAWIRE_TESTS)
    add_executable(${name} ${source} ${PROJECT_SOURCE_DIR}/cmake/fuzz_replay.cc)
    add_test(NAME fuzz.${name} COMMAND ${name} ${corpus})
    set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz-regress TIMEOUT 60)
  else()
    return()
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
endfunction()
