/* template-form.h: the chat templates of the Qwen3 family, for tests. They are not in the repository: the first one is in
 * the fetched Qwen3 folder, the others differ from it by the edits in tests/fixtures/template/forms.json. */
#pragma once
#include <glib.h>

/* "chat_template" of @dir's tokenizer_config.json; owned. */
char *template_source(const char *dir);
/* The same with the edits of @form ("revised", "thinking", "instruct"); owned. */
char *template_form_source(const char *dir, const char *form);
