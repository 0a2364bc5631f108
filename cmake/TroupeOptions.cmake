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
endif()

# troupe_room(NAME SOURCES a.cpp ... LIBS lib ...): one static library with the house's options.
function(troupe_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${ROOM_SOURCES})
  target_link_libraries(${name} PUBLIC troupe_options ${ROOM_LIBS})
endfunction()
