/* layouts.c - prints the sizes and offsets of all public structs, and the values of constants, as JSON: for
   bindings in other languages.

   Shows     gcomp_layout (gcomp_layouts.h)
   Leaves    the types of fields: see the declarations in gcomp.h
   Build     make build/layouts
   Run       build/layouts (make layouts) */

#define GCOMP_IMPLEMENTATION
#include "gcomp_layouts.h"

#include <stdio.h>
#include <string.h>

/* A name with a dot is a field, and a name without a size is a value; the others are structs. */
static int is_value(size_t size) { return size == 0; }

static void print_structs(void)
{
    const char *name, *dot, *next = "";
    size_t offset, size;
    int inside = 0;
    for (size_t i = 0; (name = gcomp_layout(i, &offset, &size)) != NULL && !is_value(size); i++) {
        dot = strchr(name, '.');
        if (!dot) {
            printf("%s\n    \"%s\": {\"size\": %zu, \"fields\": {", inside ? "\n    }}," : "", name, size);
            inside = 1;
            next = "";
        } else {
            printf("%s\n      \"%s\": {\"offset\": %zu, \"size\": %zu}", next, dot + 1, offset, size);
            next = ",";
        }
    }
    printf("\n    }}");
}

static void print_constants(void)
{
    const char *name, *next = "";
    size_t value, size;
    for (size_t i = 0; (name = gcomp_layout(i, &value, &size)) != NULL; i++) {
        if (!is_value(size)) continue;
        printf("%s\n    \"%s\": %d", next, name, (int)value); /* errors are below 0 */
        next = ",";
    }
}

int main(void)
{
    printf("{\n  \"version\": %d,\n  \"pointer_bytes\": %zu,\n  \"structs\": {", gcomp_version(), sizeof(void *));
    print_structs();
    printf("\n  },\n  \"constants\": {");
    print_constants();
    printf("\n  }\n}\n");
    return 0;
}
