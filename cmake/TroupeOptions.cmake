# Compile options shared by every room. Linked privately by each target through troupe_room().

add_library(troupe_options INTERFACE)
target_include_directories(troupe_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(troupe_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()
# Code of folder tests.
define_property(TARGET PROPERTY TROUPE_TEST_CODE INITIALIZE_FROM_VARIABLE TROUPE_TEST_CODE)
set(is_test $<BOOL:$<TARGET_PROPERTY:TROUPE_TEST_CODE>>)
# Rooms that read bytes of others (mapped files, peers' memory) have this property: there UBSan looks at alignment too.
define_property(TARGET PROPERTY TROUPE_CHECK_ALIGNMENT INITIALIZE_FROM_VARIABLE TROUPE_CHECK_ALIGNMENT)
if(TROUPE_JOIN)
  # Tests are compiled to be run once (benchmarks are no test code).
  target_compile_options(troupe_options INTERFACE $<${is_test}:-O1>)
endif()
if(TROUPE_SANITIZE)
  target_compile_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer -g1 -O1)
  target_link_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE})
  if(TROUPE_SANITIZE MATCHES "undefined")
    # Half of the time to compile went into a check of every single pointer for null and alignment; AddressSanitizer
    # catches an access through null and through the wrong size as well. Test code is under AddressSanitizer only.
    target_compile_options(
      troupe_options
      INTERFACE $<${is_test}:-fno-sanitize=undefined>
                $<$<NOT:${is_test}>:-fno-sanitize=null,vptr,object-size>
                $<$<NOT:$<OR:${is_test},$<BOOL:$<TARGET_PROPERTY:TROUPE_CHECK_ALIGNMENT>>>>:-fno-sanitize=alignment>)
  endif()
endif()
find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TROUPE_CCACHE})
  if(TROUPE_JOIN)
    # A miss does not preprocess the source a second time, which is a tenth of a build with an empty cache.
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_DEPEND=1 ${TROUPE_CCACHE})
  endif()
endif()

# troupe_join(OUT NAME source ...): the sources to compile in place of these. With TROUPE_JOIN, files that include up to
# TROUPE_JOIN_SIZE of them each: headers and templates are compiled once for all. So names in a room's anonymous namespaces
# differ from each other. (CMake's UNITY_BUILD would name the sources by absolute path: no two checkouts could share ccache.)
function(troupe_join out name)
  list(LENGTH ARGN count)
  if(NOT TROUPE_JOIN OR count EQUAL 1)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  math(EXPR files "(${count} + ${TROUPE_JOIN_SIZE} - 1) / ${TROUPE_JOIN_SIZE}")
  math(EXPR each "(${count} + ${files} - 1) / ${files}")
  math(EXPR last "${count} - 1")
  set(joined "")
  foreach(first RANGE 0 ${last} ${each})
    list(SUBLIST ARGN ${first} ${each} part)
    set(text "")
    foreach(source ${part})
      file(REAL_PATH ${source} path BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
      file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${path})
      string(APPEND text "#include \"${path}\"\n")
    endforeach()
    set(file ${CMAKE_CURRENT_BINARY_DIR}/joined/${name}_${first}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND joined ${file})
  endforeach()
  set(${out} ${joined} PARENT_SCOPE)
endfunction()

# troupe_room(NAME SOURCES a.cpp ... LIBS lib ...): one static library with the house's options.
function(troupe_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;LIBS" ${ARGN})
  troupe_join(sources ${name} ${ROOM_SOURCES})
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC troupe_options ${ROOM_LIBS})
endfunction()
