# troupe_test(NAME SOURCES a.cpp ... LIBS lib ... [LABELS l ...] [TIMEOUT seconds]): one GoogleTest executable and one
# ctest entry per executable. Labels: `unit` (sanitizer runs use it), `scenario`, `bench`.
function(troupe_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE troupe_options ${T_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE TROUPE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             TROUPE_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  if(NOT T_LABELS)
    set(T_LABELS unit)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}")
endfunction()
