/* quire-markdown.c: md4c's events become a flat list of blocks. See quire-markdown.h.
 *
 * Inline text goes into one markup string per block. Spans are kept on a stack, so that the markup nests whatever comes.
 */
#include "app/quire-markdown.h"

#include <md4c.h>
#include <string.h>

#include "app/quire-math.h"

typedef struct
{
  gboolean ordered;
  guint next;
  char delimiter;
} List;

typedef struct
{
  GPtrArray *blocks;
  GString *inline_markup;
  GString *code;
  List lists[QUIRE_MARKDOWN_DEPTH_MAX];
  guint list_depth, quote_depth;
  char *marker;     /* waits for the first block of its item */
  gboolean in_code; /* a code block */
  gboolean open;    /* inline text that belongs to a block not yet emitted */
  QuireBlock *table;
  GArray *spans;               /* MD_SPANTYPE of those that are open in the markup */
  GPtrArray *formulas;         /* (element-type QuireFormula) */
  const QuireFormula *display; /* the block began with it, and its markup ends at display_end */
  gsize display_end;
} Parser;

static QuireBlock *
add_block (Parser *p, QuireBlockKind kind)
{
  QuireBlock *block = g_new0 (QuireBlock, 1);

  block->kind = kind;
  block->quote_depth = MIN (p->quote_depth, QUIRE_MARKDOWN_DEPTH_MAX);
  block->list_depth = MIN (p->list_depth, QUIRE_MARKDOWN_DEPTH_MAX);
  block->marker = g_steal_pointer (&p->marker);
  g_ptr_array_add (p->blocks, block);
  return block;
}

static const char *
span_end (MD_SPANTYPE type)
{
  switch (type)
    {
    case MD_SPAN_EM:
      return "</i>";
    case MD_SPAN_STRONG:
      return "</b>";
    case MD_SPAN_DEL:
      return "</s>";
    case MD_SPAN_CODE:
      return "</tt>";
    default:
      return "</a>";
    }
}

/* Closes spans until @n are left open. */
static void
close_spans (Parser *p, guint n)
{
  while (p->spans->len > n)
    {
      g_string_append (p->inline_markup,
                       span_end (g_array_index (p->spans, MD_SPANTYPE, p->spans->len - 1)));
      g_array_set_size (p->spans, p->spans->len - 1);
    }
}

static char *
take_markup (Parser *p)
{
  char *markup;

  close_spans (p, 0);
  markup = g_strdup (p->inline_markup->str);
  g_string_truncate (p->inline_markup, 0);
  p->open = FALSE;
  p->display = NULL;
  return markup;
}

/* Text of a tight list item comes without a paragraph around it. */
static void
flush_loose_text (Parser *p)
{
  if (p->open && p->table == NULL)
    {
      QuireBlock *block = add_block (p, QUIRE_BLOCK_TEXT);
      block->markup = take_markup (p);
    }
}

/* The formula of the mark at *@at, behind which *@at then is; NULL when there is no mark. */
static const QuireFormula *
take_mark (const Parser *p, const char **at, const char *end)
{
  const char *digit = *at;
  guint n = 0;

  if (g_utf8_get_char (digit) != QUIRE_MATH_OPEN)
    return NULL;
  for (digit = g_utf8_next_char (digit); digit < end && g_ascii_isdigit (*digit); digit++)
    n = n * 10 + (guint)(*digit - '0');
  if (digit >= end || g_utf8_get_char (digit) != QUIRE_MATH_CLOSE || n >= p->formulas->len)
    return NULL;
  *at = g_utf8_next_char (digit);
  return g_ptr_array_index (p->formulas, n);
}

/* What is no text to read, as code and addresses: in it nothing is a formula. */
static void
append_source (const Parser *p, GString *out, const char *text, gsize size)
{
  const char *end = text + size;

  while (text < end)
    {
      const QuireFormula *formula = take_mark (p, &text, end);
      const char *next = text;

      if (formula != NULL)
        {
          g_string_append (out, formula->source);
          continue;
        }
      next = g_utf8_next_char (text);
      g_string_append_len (out, text, next - text);
      text = next;
    }
}

static char *
attribute_text (const Parser *p, const MD_ATTRIBUTE *attribute)
{
  GString *out = g_string_new (NULL);

  if (attribute->text != NULL)
    append_source (p, out, attribute->text, attribute->size);
  return g_string_free (out, FALSE);
}

static void
enter_list_item (Parser *p, const MD_BLOCK_LI_DETAIL *detail)
{
  List *list = &p->lists[MIN (p->list_depth, QUIRE_MARKDOWN_DEPTH_MAX) - 1];

  g_free (p->marker);
  if (detail->is_task)
    p->marker = g_strdup (detail->task_mark == ' ' ? "☐" : "☑");
  else if (list->ordered)
    p->marker = g_strdup_printf ("%u%c", list->next++, list->delimiter);
  else
    p->marker = g_strdup (p->list_depth % 2 == 1 ? "•" : "◦");
}

static void
enter_list (Parser *p, gboolean ordered, guint start, char delimiter)
{
  p->list_depth++;
  p->lists[MIN (p->list_depth, QUIRE_MARKDOWN_DEPTH_MAX) - 1]
      = (List){ .ordered = ordered, .next = start, .delimiter = delimiter };
}

static void
enter_code (Parser *p, const MD_BLOCK_CODE_DETAIL *detail)
{
  QuireBlock *block = add_block (p, QUIRE_BLOCK_CODE);
  g_autofree char *language = attribute_text (p, &detail->lang);

  if (language[0] != '\0')
    block->language = g_ascii_strdown (language, -1);
  p->in_code = TRUE;
  g_string_truncate (p->code, 0);
}

static int
on_enter_block (MD_BLOCKTYPE type, void *detail, void *user_data)
{
  Parser *p = user_data;

  switch (type)
    {
    case MD_BLOCK_QUOTE:
      flush_loose_text (p);
      p->quote_depth++;
      break;
    case MD_BLOCK_UL:
      flush_loose_text (p);
      enter_list (p, FALSE, 0, 0);
      break;
    case MD_BLOCK_OL:
      flush_loose_text (p);
      enter_list (p, TRUE, ((MD_BLOCK_OL_DETAIL *)detail)->start,
                  ((MD_BLOCK_OL_DETAIL *)detail)->mark_delimiter);
      break;
    case MD_BLOCK_LI:
      enter_list_item (p, detail);
      break;
    case MD_BLOCK_HR:
      flush_loose_text (p);
      add_block (p, QUIRE_BLOCK_RULE);
      break;
    case MD_BLOCK_CODE:
      flush_loose_text (p);
      enter_code (p, detail);
      break;
    case MD_BLOCK_TABLE:
      flush_loose_text (p);
      p->table = add_block (p, QUIRE_BLOCK_TABLE);
      p->table->n_columns = ((MD_BLOCK_TABLE_DETAIL *)detail)->col_count;
      p->table->cells = g_ptr_array_new_with_free_func (g_free);
      p->table->aligns = g_new0 (guint8, MAX (p->table->n_columns, 1));
      break;
    case MD_BLOCK_TH:
      case MD_BLOCK_TD: {
        MD_ALIGN align = ((MD_BLOCK_TD_DETAIL *)detail)->align;
        guint column = p->table->n_columns > 0 ? p->table->cells->len % p->table->n_columns : 0;

        p->table->aligns[column] = align == MD_ALIGN_CENTER ? 1 : align == MD_ALIGN_RIGHT ? 2 : 0;
        g_free (take_markup (p));
      }
      break;
    case MD_BLOCK_P:
    case MD_BLOCK_H:
      flush_loose_text (p);
      break;
    default:
      break;
    }
  return 0;
}

static void
leave_code (Parser *p)
{
  QuireBlock *block = g_ptr_array_index (p->blocks, p->blocks->len - 1);

  if (p->code->len > 0 && p->code->str[p->code->len - 1] == '\n')
    g_string_truncate (p->code, p->code->len - 1);
  block->text = g_strdup (p->code->str);
  p->in_code = FALSE;
}

static int
on_leave_block (MD_BLOCKTYPE type, void *detail, void *user_data)
{
  Parser *p = user_data;
  QuireBlock *block;

  switch (type)
    {
    case MD_BLOCK_QUOTE:
      flush_loose_text (p);
      p->quote_depth--;
      break;
    case MD_BLOCK_UL:
    case MD_BLOCK_OL:
      flush_loose_text (p);
      p->list_depth--;
      break;
    case MD_BLOCK_LI:
      if (p->marker != NULL) /* an item without content, or whose text waits */
        p->open = TRUE;
      flush_loose_text (p);
      break;
    case MD_BLOCK_CODE:
      leave_code (p);
      break;
    case MD_BLOCK_TABLE:
      p->table = NULL;
      break;
    case MD_BLOCK_TH:
    case MD_BLOCK_TD:
      g_ptr_array_add (p->table->cells, take_markup (p));
      break;
    case MD_BLOCK_P:
      if (p->display != NULL && p->display_end == p->inline_markup->len)
        {
          block = add_block (p, QUIRE_BLOCK_MATH);
          block->text = g_strdup (p->display->tex);
        }
      else
        block = add_block (p, QUIRE_BLOCK_TEXT);
      block->markup = take_markup (p);
      break;
    case MD_BLOCK_H:
      block = add_block (p, QUIRE_BLOCK_HEADING);
      block->level = ((MD_BLOCK_H_DETAIL *)detail)->level;
      block->markup = take_markup (p);
      break;
    default:
      break;
    }
  return 0;
}

static gboolean
link_is_safe (const char *url)
{
  return g_ascii_strncasecmp (url, "https://", 8) == 0
         || g_ascii_strncasecmp (url, "http://", 7) == 0
         || g_ascii_strncasecmp (url, "mailto:", 7) == 0;
}

static int
on_enter_span (MD_SPANTYPE type, void *detail, void *user_data)
{
  Parser *p = user_data;
  const char *begin = NULL;
  g_autofree char *link = NULL;

  p->open = TRUE;
  if (type == MD_SPAN_EM)
    begin = "<i>";
  else if (type == MD_SPAN_STRONG)
    begin = "<b>";
  else if (type == MD_SPAN_DEL)
    begin = "<s>";
  else if (type == MD_SPAN_CODE)
    begin = "<tt>";
  else if (type == MD_SPAN_A)
    {
      g_autofree char *url = attribute_text (p, &((MD_SPAN_A_DETAIL *)detail)->href);

      if (link_is_safe (url))
        {
          g_autofree char *escaped = g_markup_escape_text (url, -1);
          begin = link = g_strdup_printf ("<a href=\"%s\">", escaped);
        }
    }
  if (begin != NULL)
    {
      g_string_append (p->inline_markup, begin);
      g_array_append_val (p->spans, type);
    }
  return 0;
}

/* md4c can close spans in another order than it opened them ("~~*x~~*"): close what is inside, and let the late close
 * find nothing. A link that was not written finds nothing either. */
static int
on_leave_span (MD_SPANTYPE type, void *detail, void *user_data)
{
  Parser *p = user_data;

  for (guint i = p->spans->len; i > 0; i--)
    if (g_array_index (p->spans, MD_SPANTYPE, i - 1) == type)
      {
        close_spans (p, i - 1);
        break;
      }
  return 0;
}

/* "&copy;" and the like. Only the numeric and the five XML entities are known; others stay as written. */
static void
append_entity (GString *markup, const char *entity, gsize n)
{
  static const char *const known[] = { "&amp;", "&lt;", "&gt;", "&quot;", "&apos;" };
  g_autofree char *name = g_strndup (entity, n);
  gunichar c = 0;

  for (gsize i = 0; i < G_N_ELEMENTS (known); i++)
    if (strcmp (name, known[i]) == 0)
      {
        g_string_append (markup, name);
        return;
      }
  if (strcmp (name, "&nbsp;") == 0)
    c = 0xa0;
  else if (name[1] == '#')
    c = (gunichar)g_ascii_strtoull (name + (name[2] == 'x' || name[2] == 'X' ? 3 : 2), NULL,
                                    name[2] == 'x' || name[2] == 'X' ? 16 : 10);
  /* Pango markup takes no other control characters. */
  if (c >= 0x20 && c != 0x7f && !(c >= 0x80 && c < 0xa0) && g_unichar_validate (c))
    {
      char utf8[8] = "";
      g_autofree char *escaped = NULL;

      g_unichar_to_utf8 (c, utf8);
      escaped = g_markup_escape_text (utf8, -1);
      g_string_append (markup, escaped);
    }
  else
    {
      g_autofree char *escaped = g_markup_escape_text (name, -1);
      g_string_append (markup, escaped);
    }
}

static void
append_formula (Parser *p, const QuireFormula *formula)
{
  g_autofree char *markup = quire_math_to_markup (formula->tex, strlen (formula->tex));
  gboolean first = p->inline_markup->len == 0 && formula->display;

  if (markup != NULL)
    g_string_append (p->inline_markup, markup);
  else
    {
      /* Its source, as it was written. */
      g_autofree char *source
          = g_strdup_printf (formula->display ? "$$%s$$" : "$%s$", formula->tex);
      g_autofree char *escaped = g_markup_escape_text (source, -1);

      g_string_append_printf (p->inline_markup, "<tt>%s</tt>", escaped);
    }
  if (first)
    {
      p->display = formula;
      p->display_end = p->inline_markup->len;
    }
}

static void
append_escaped (GString *out, const char *text, gsize n)
{
  g_autofree char *escaped = g_markup_escape_text (text, (gssize)n);

  g_string_append (out, escaped);
}

/* Text in which formulas are marks, see quire_math_extract(). */
static void
append_text (Parser *p, const char *text, gsize size, gboolean code)
{
  const char *end = text + size, *begin = text, *at = text;

  while (at < end)
    {
      const char *mark = at;
      const QuireFormula *formula = take_mark (p, &at, end);

      if (formula == NULL)
        {
          at = g_utf8_next_char (at);
          continue;
        }
      append_escaped (p->inline_markup, begin, (gsize)(mark - begin));
      if (code)
        append_escaped (p->inline_markup, formula->source, strlen (formula->source));
      else
        append_formula (p, formula);
      begin = at;
    }
  append_escaped (p->inline_markup, begin, (gsize)(end - begin));
}

static int
on_text (MD_TEXTTYPE type, const MD_CHAR *text, MD_SIZE size, void *user_data)
{
  Parser *p = user_data;

  if (p->in_code)
    {
      append_source (p, p->code, text, size);
      return 0;
    }
  p->open = TRUE;
  switch (type)
    {
    case MD_TEXT_BR:
    case MD_TEXT_SOFTBR:
      /* Chat models break lines where they mean it. */
      g_string_append_c (p->inline_markup, '\n');
      break;
    case MD_TEXT_ENTITY:
      append_entity (p->inline_markup, text, size);
      break;
    case MD_TEXT_NULLCHAR:
      g_string_append (p->inline_markup, "␀");
      break;
    default:
      append_text (p, text, size, type == MD_TEXT_CODE);
      break;
    }
  return 0;
}

char *
quire_text_make_valid (const char *text, gsize n_bytes)
{
  GString *out = g_string_sized_new (n_bytes + 1);

  while (n_bytes > 0)
    {
      const char *end;
      gsize n;

      g_utf8_validate_len (text, n_bytes, &end); /* stops at a NUL too */
      n = (gsize)(end - text);
      g_string_append_len (out, text, (gssize)n);
      text = end;
      n_bytes -= n;
      if (n_bytes > 0)
        {
          g_string_append (out, *text == '\0' ? "␀" : "\xef\xbf\xbd");
          text++;
          n_bytes--;
        }
    }
  return g_string_free (out, FALSE);
}

GPtrArray *
quire_markdown_parse (const char *text, gsize n_bytes)
{
  g_autofree char *source = quire_text_make_valid (text, n_bytes);
  g_autoptr (GPtrArray) formulas = NULL;
  g_autofree char *valid = quire_math_extract (source, &formulas);
  Parser p = { .blocks = g_ptr_array_new_with_free_func ((GDestroyNotify)quire_block_free),
               .inline_markup = g_string_new (NULL),
               .code = g_string_new (NULL),
               .spans = g_array_new (FALSE, FALSE, sizeof (MD_SPANTYPE)),
               .formulas = formulas };
  MD_PARSER parser = {
    .flags = MD_FLAG_TABLES | MD_FLAG_STRIKETHROUGH | MD_FLAG_TASKLISTS
             | MD_FLAG_PERMISSIVEURLAUTOLINKS | MD_FLAG_NOHTML | MD_FLAG_NOINDENTEDCODEBLOCKS,
    .enter_block = on_enter_block,
    .leave_block = on_leave_block,
    .enter_span = on_enter_span,
    .leave_span = on_leave_span,
    .text = on_text,
  };

  md_parse (valid, (MD_SIZE)strlen (valid), &parser, &p);
  flush_loose_text (&p);
  g_string_free (p.inline_markup, TRUE);
  g_string_free (p.code, TRUE);
  g_array_unref (p.spans);
  g_free (p.marker);
  return p.blocks;
}

/* ---- What is settled ---- */

/* The length of the run of backticks or tildes that @line begins with, when it can open a fence. */
static gsize
fence_length (const char *line, gsize n)
{
  gsize run = 0;

  while (run < n && line[run] == line[0])
    run++;
  if (n == 0 || (line[0] != '`' && line[0] != '~') || run < 3
      || (line[0] == '`' && memchr (line + run, '`', n - run) != NULL))
    return 0;
  return run;
}

/* Whether @line could go on with a list that a blank line has left open. One that is not all there yet may become a list. */
static gboolean
may_be_item (const char *line, gsize n, gboolean whole)
{
  enum
  {
    MARKER_BYTES_MAX = 12
  };
  gsize i = 0;

  if (!whole && n < MARKER_BYTES_MAX)
    return TRUE;
  if (strchr ("-+*", line[0]) != NULL)
    return n < 2 || line[1] == ' ' || line[1] == '\t';
  while (i < n && g_ascii_isdigit (line[i]))
    i++;
  return i > 0 && (i == n || line[i] == '.' || line[i] == ')');
}

static gboolean
has_fence (const char *line, gsize n)
{
  for (gsize i = 0; i + 3 <= n; i++)
    if ((line[i] == '`' || line[i] == '~') && line[i + 1] == line[i] && line[i + 2] == line[i])
      return TRUE;
  return FALSE;
}

/* Text is settled before a line that follows a blank one, is not indented, and is no item of a list: nothing before it can
 * go on. Fences are the exception, so they are followed; where it is not plain whether one is open, the search ends. */
gsize
quire_markdown_find_settled (const char *text, gsize n_bytes)
{
  gsize settled = 0, fence = 0, next;
  gboolean blank = FALSE, inner = FALSE;
  char mark = 0;

  if (memmem (text, n_bytes, "]:", 2) != NULL || memchr (text, '\r', n_bytes) != NULL
      || memchr (text, '\0', n_bytes) != NULL)
    return 0;
  for (gsize at = 0; at < n_bytes; at = next)
    {
      const char *newline = memchr (text + at, '\n', n_bytes - at);
      gsize end = newline != NULL ? (gsize)(newline - text) : n_bytes, indent = 0, run;
      const char *line;
      gsize n;

      next = end + 1;
      while (at + indent < end && (text[at + indent] == ' ' || text[at + indent] == '\t'))
        indent++;
      line = text + at + indent;
      n = end - at - indent;
      if (n == 0)
        {
          blank = TRUE;
          continue;
        }
      run = fence_length (line, n);
      if (fence > 0)
        {
          gboolean closes
              = run >= fence && line[0] == mark && strspn (line + run, " \t\n") >= n - run;

          /* A fence in a list ends with the list, one at the top is not ended so. */
          if ((inner && indent == 0) || (closes && !inner && indent > 3))
            return settled;
          if (closes)
            fence = 0;
        }
      else
        {
          gboolean item = may_be_item (line, n, newline != NULL);

          if (blank && indent == 0 && !item)
            settled = at;
          if (run > 0)
            {
              fence = run;
              mark = line[0];
              inner = indent > 0;
            }
          else if (has_fence (line, n))
            return settled;
        }
      blank = FALSE;
    }
  return settled;
}

static gboolean
cells_equal (const GPtrArray *a, const GPtrArray *b)
{
  if (a == NULL || b == NULL)
    return a == b;
  if (a->len != b->len)
    return FALSE;
  for (guint i = 0; i < a->len; i++)
    if (strcmp (g_ptr_array_index (a, i), g_ptr_array_index (b, i)) != 0)
      return FALSE;
  return TRUE;
}

gboolean
quire_block_equal (const QuireBlock *a, const QuireBlock *b)
{
  return a->kind == b->kind && a->level == b->level && a->quote_depth == b->quote_depth
         && a->list_depth == b->list_depth && a->n_columns == b->n_columns
         && g_strcmp0 (a->marker, b->marker) == 0 && g_strcmp0 (a->markup, b->markup) == 0
         && g_strcmp0 (a->text, b->text) == 0 && g_strcmp0 (a->language, b->language) == 0
         && cells_equal (a->cells, b->cells)
         && (a->n_columns == 0 || memcmp (a->aligns, b->aligns, a->n_columns) == 0);
}

void
quire_block_free (QuireBlock *block)
{
  if (block == NULL)
    return;
  g_free (block->marker);
  g_free (block->markup);
  g_free (block->text);
  g_free (block->language);
  g_free (block->aligns);
  g_clear_pointer (&block->cells, g_ptr_array_unref);
  g_free (block);
}
