/* qe-schema.h: JSON Schema to a grammar. Internal; any thread.
 *
 * What is known of JSON Schema (2020-12 and draft 7 names):
 *   type              one or a list of null, boolean, object, array, number, integer, string
 *   properties, required, additionalProperties
 *   items (a schema or a boolean), prefixItems, minItems, maxItems
 *   minLength, maxLength (in characters)
 *   enum, const       any JSON values; beside them only type
 *   anyOf, oneOf      beside them only annotations; oneOf is taken as anyOf
 *   allOf             of one schema
 *   $ref              "#" or "#/..." in the same document, recursion too; beside it only annotations
 *   true and false as schemas
 * Annotations say nothing about what is valid, and are passed over: title, description, default, examples, deprecated,
 * readOnly, writeOnly, format, contentEncoding, contentMediaType, $schema, $comment, $defs, definitions, and $id at the
 * root. Every other keyword (pattern, minimum, multipleOf, uniqueItems: true, patternProperties, not, if, ...) is refused:
 * QE_ERROR_UNSUPPORTED names its JSON pointer. A keyword of a type that the schema does not allow does not apply.
 *
 * All that the grammar accepts is valid by the schema. Not all that is valid is accepted:
 *   - properties come in the order of `properties`, then required ones that are not listed there, then others
 *   - without additionalProperties there are others only where there are neither properties nor required
 *   - a schema without type that has keywords of some types is of these types
 *   - an integer has no fraction or exponent; literals are written in one way; see qe-grammar.h for strings and numbers
 * Keys of others may repeat among themselves. */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include "engine/qe-grammar.h"

G_BEGIN_DECLS

/* Errors: QE_ERROR_FORMAT (no JSON, a keyword's value of the wrong type), _UNSUPPORTED, _INVALID (nothing can match; too
 * large). Returns: owned. */
qe_grammar *qe_schema_to_grammar(const char *schema, gsize n_bytes, GError **error);
/* See qe_constraint_new_tool_call(). */
qe_grammar *qe_schema_tools_to_grammar(
    const char *tools, gsize n_bytes, const char *name, bool parallel, GError **error);
/* See qe_constraint_new_tool_call_or_json(). */
qe_grammar *qe_schema_tools_or_json_to_grammar(
    const char *tools, gsize n_tools, bool parallel, const char *schema, gsize n_schema, GError **error);

G_END_DECLS
