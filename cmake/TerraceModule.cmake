# terrace_module(NAME SOURCES a.cc... [DEPENDS libraries...]): one folder of lib/ or backends/ as an object
# library terrace_NAME. The shared library Terrace::terrace and the static one that tests link are both
# made of these objects, so that nothing is compiled twice.
set_property(GLOBAL PROPERTY TERRACE_MODULES "")

function(terrace_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS")
  add_library(terrace_${name} OBJECT ${arg_SOURCES})
  target_include_directories(terrace_${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(terrace_${name} PRIVATE ${TERRACE_WARNINGS})
  target_link_libraries(terrace_${name} PUBLIC Threads::Threads ${arg_DEPENDS})
  set_property(GLOBAL APPEND PROPERTY TERRACE_MODULES terrace_${name})
  set_property(GLOBAL APPEND PROPERTY TERRACE_MODULE_DEPENDS ${arg_DEPENDS})
endfunction()

set(TERRACE_WARNINGS "")  # of the C++ compiler: nvcc does not know them
foreach(flag IN ITEMS -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers)
  list(APPEND TERRACE_WARNINGS $<$<COMPILE_LANGUAGE:C,CXX>:${flag}>)
endforeach()

# Sources that include gRPC's headers take seconds each, nearly all of it for these: with TERRACE_UNITY_BUILD
# (the presets of scripts/test.sh) several are compiled as one.
option(TERRACE_UNITY_BUILD "Compile the sources of the gRPC parts several at a time" OFF)
function(terrace_unity target)
  if(TERRACE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  endif()
endfunction()
