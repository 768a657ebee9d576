/* quire-words.c: see quire-words.h. A part that varies may be one of the sentences itself. */
#include "app/quire-words.h"

#include <glib/gi18n.h>
#include <string.h>

#define PARTS_MAX 8

/* Where two forms fit, the first one is taken. A test holds them against the sources of engine and kernels. */
static const char *const forms[] = {
  /* Why there is no GPU. */
  N_ ("The CUDA module is missing: this copy of Quire was built or installed without it."),
  N_ ("The CUDA module is missing: QUIRE_CUDA_MODULE names a file that is not there."),
  N_ ("The CUDA module belongs to another version of Quire: install both from the same build."),
  N_ ("The CUDA module cannot be opened (%s): install Quire again."),
  N_ ("No NVIDIA driver is installed (libcuda.so.1 is missing): install one to compute on the "
      "GPU."),
  N_ ("The NVIDIA driver finds no GPU: check that one is fitted, and that CUDA_VISIBLE_DEVICES "
      "does not hide it."),
  N_ ("The NVIDIA driver was updated while it was running: restart the computer."),
  N_ ("The NVIDIA driver does not start (%s): restart the computer."),
  N_ ("CUDA cannot be used (%s): restart Quire, or update the NVIDIA driver."),
  N_ ("Out of memory on %s: close other programs that use the GPU."),
  N_ ("Out of memory on %s: %s of %s GiB are free; close other programs that use the GPU."),
  N_ ("There is no graphics card \"%s\"."),
  N_ ("No graphics card can be used."),
  N_ ("The graphics card does not run this model: %s."),
  N_ ("The model runs on the CPU."),
  /* Memory. */
  N_ ("The graphics card has %s free. The model takes %s for weights and %s to compute in, %s stay "
      "for the desktop; %s are left for the cache, which needs %s. %s"),
  N_ ("Lower the cache memory, or close other programs that use the card."),
  N_ ("Close other programs that use the card, lower the memory reserve, or take a smaller model."),
  N_ ("KV memory of %s bytes holds no page: one has %s bytes"),
  N_ ("no KV %spage left: all %s pages of %s bytes are in use and the limit is %s"),
  N_ ("The prompt has %s tokens, the context holds %s"),
  N_ ("The prompt's %s tokens need %s KV pages (%s bytes), the limit is %s (%s bytes)"),
  /* States. */
  N_ ("Off"),
  N_ ("No model is loaded."),
  N_ ("No model is loaded"),
  N_ ("The model is still loading"),
  N_ ("The device was lost: %s"),
  N_ ("Cannot open backend \"%s\": %s"),
  N_ ("Cannot load the model onto the device: %s"),
  N_ ("Cannot make the workspace: %s"),
  N_ ("The model gave an invalid number at token %s"),
  /* Files of models. What was expected and what was found are sentences of their own where they are words. */
  N_ ("%s: cannot open: %s"),
  N_ ("%s: cannot examine: %s"),
  N_ ("%s: cannot read the header: %s"),
  N_ ("%s: cannot map %s bytes: %s"),
  N_ ("%s: no memory for %s bytes"),
  N_ ("%s: no memory for a header of %s bytes"),
  N_ ("%s: expected a regular file, found %s"),
  N_ ("%s: expected %s or %s, found neither"),
  N_ ("%s: expected a safetensors file of at least 8 bytes, found %s"),
  N_ ("%s: expected %s bytes of data, found %s (bytes after tensor %s)"),
  N_ ("%s: header: expected '{' as its first byte"),
  N_ ("%s: tensor %s is missing: expected %s, since tie_word_embeddings is false"),
  N_ ("%s: tensor %s is missing: expected %s"),
  N_ ("%s: tensor %s is there twice"),
  N_ ("%s: tensor %s: expected shape %s (from config.json), found %s"),
  N_ ("%s: tensor %s: expected dtype BF16 or F32, found %s"),
  N_ ("%s: tensor %s: expected in this file by %s, found nothing"),
  N_ ("%s: tensor %s: dtype \"%s\" is not known to this build"),
  N_ ("%s: tensor %s: %s: expected %s, found %s"),
  N_ ("%s: not valid JSON at byte %s: expected %s, found %s"),
  N_ ("%s: not valid JSON: %s"),
  N_ ("%s: not valid JSON"),
  N_ ("%s: architectures has \"%s\", not \"Qwen3ForCausalLM\": %s"),
  N_ ("%s: layer_types[%s] is \"%s\": every layer must be \"full_attention\""),
  N_ ("%s: chat_template: expected \"%s\" among the added tokens of tokenizer.json, f"
      "ound none"),
  N_ ("%s: chat_template: expected a chat template that Quire knows (Qwen3, "
      "Qwen3-Instruct-2507, Qwen3-Thinking-2507, or the shipped model's), found %s%s%s%s; use the "
      "folder's original template, or a model of that family"),
  N_ ("%s: %s%s: expected %s, found %s"),
  N_ ("%s: the key \"%s\" is there twice"),
  N_ ("nothing"),
  N_ ("an object"),
  N_ ("a list"),
  N_ ("a string"),
  N_ ("a number"),
  N_ ("a number from %s to %s"),
  N_ ("the end"),
  /* The CPU. */
  N_ ("%s, %s, %s threads"),
  N_ ("%s, %s, 1 thread"),
  N_ ("portable code"),
  /* A name first: after all others, for a name can be anything. */
  N_ ("%s is held by another program, or its compute mode forbids use: close that program."),
  N_ ("%s reports a hardware error (%s): restart the computer."),
  N_ ("%s was lost (%s): load the model again, or else restart Quire."),
  N_ ("%s is too old for Quire: its compute capability is %s.%s, and %s.%s is needed."),
  N_ ("%s sessions are open already"),
  NULL,
};

const char *const *
quire_words_get_forms (void)
{
  return forms;
}

/* The parts of @text where @form has "%s", the shortest ones that fit; a last one takes the rest. Those that were found are
 * the caller's, also when FALSE says that the form does not fit. */
static gboolean
match (const char *form, const char *text, GPtrArray *parts)
{
  for (;;)
    {
      const char *mark = strstr (form, "%s"), *end;
      g_autofree char *next = NULL;

      if (mark == NULL)
        return strcmp (form, text) == 0;
      if (strncmp (form, text, (gsize)(mark - form)) != 0)
        return FALSE;
      text += mark - form;
      form = mark + 2;
      mark = strstr (form, "%s");
      next = mark != NULL ? g_strndup (form, (gsize)(mark - form)) : g_strdup (form);
      /* Of two parts without anything between them the first is empty. */
      if (mark == form)
        end = text;
      else if (mark == NULL)
        end = g_str_has_suffix (text, next) ? text + strlen (text) - strlen (next) : NULL;
      else
        end = next[0] != '\0' ? strstr (text, next) : NULL;
      if (end == NULL || parts->len == PARTS_MAX)
        return FALSE;
      g_ptr_array_add (parts, g_strndup (text, (gsize)(end - text)));
      text = end;
    }
}

/* @form has "%s", or "%2$s" where the language wants another order. */
static char *
fill (const char *form, GPtrArray *parts)
{
  GString *out = g_string_new (NULL);
  guint n = 0;

  while (*form != '\0')
    {
      guint at = n;

      if (form[0] == '%' && form[1] == 's')
        {
          n++;
          form += 2;
        }
      else if (form[0] == '%' && g_ascii_isdigit (form[1]) && form[2] == '$' && form[3] == 's')
        {
          at = (guint)(form[1] - '1');
          form += 4;
        }
      else
        {
          g_string_append_c (out, *form++);
          continue;
        }
      if (at < parts->len)
        g_string_append (out, quire_words (parts->pdata[at]));
    }
  return g_string_free (out, FALSE);
}

const char *
quire_words (const char *text)
{
  for (gsize i = 0; text != NULL && forms[i] != NULL; i++)
    {
      g_autoptr (GPtrArray) parts = g_ptr_array_new_with_free_func (g_free);
      const char *form = _ (forms[i]);
      g_autofree char *words = NULL;

      if (!match (forms[i], text, parts))
        continue;
      words = fill (form, parts);
      return strcmp (words, text) == 0 ? text : g_intern_string (words);
    }
  return text;
}
