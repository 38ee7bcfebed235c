-- What a page of build/book needs to become one of build/html: links to .html, code coloured, wide
-- things in boxes that scroll, and the contents for page.html. tests/book passes two values:
-- `path`, that of the page, and `pages`, a file with a line "path title" for each in the contents;
-- and `live` where there is a script for live pictures.

-- The page README.md is the front page, index.html; each other page keeps its name.
local function html(path)
    return (path:gsub("README%.md$", "index.html"):gsub("%.md$", ".html"):gsub("%.ipynb$", ".html"))
end

function Link(link)
    local path, place = link.target:match("^([^#]*)(.*)$")
    if not path:match("^%a+:") then
        link.target = html(path) .. place
    end
    return link
end

-- A picture in a notebook becomes a file beside its page; the book's own folder is the working one.
function Image(image)
    local _, bytes = pandoc.mediabag.lookup(image.src)
    if bytes then
        local file = assert(io.open("notebooks/" .. image.src, "wb"))
        file:write(bytes)
        file:close()
    end
end

-- <!-- live: NAME setting=value --> is where a picture goes that can be played with. Its script is
-- of chapters/live.
local has_live = false
function RawBlock(block)
    local name, set = block.text:match("^<!%-%- live: (%a+) ?(.-) %-%->")
    if name then
        has_live = true
        return pandoc.Div({}, { class = "live", ["data-live"] = name, ["data-set"] = set })
    end
end

-- A cell of a notebook is no box of its own.
function Div(block)
    return block.classes[1] == "cell" and block.content or nil
end

function Table(block)
    return pandoc.Div({ block }, { class = "table" })
end

-- A formula on lines of its own stands between ```math and ```, in which Markdown changes nothing.
-- Newer versions of pandoc know that, older ones take it for code.
local function formula(math)
    return pandoc.Div({ pandoc.Plain({ math }) }, { class = "formula" })
end

-- One in running text cannot be broken: if it is long, it scrolls in a narrow window.
function Math(math)
    if math.mathtype == "InlineMath" and #math.text > 40 then
        return pandoc.Span({ math }, { class = "long" })
    end
end

-- Pandoc has colours for C++ but none for CUDA, which is C++ with a few words more.
function CodeBlock(block)
    if block.classes[1] == "math" then
        return formula(pandoc.Math("DisplayMath", block.text))
    end
    if block.classes[1] == "cuda" then
        block.classes = { "cpp" }
    end
    return block
end

-- A paragraph that is one picture becomes a figure, and one of nothing but anchors takes no room.
function Para(para)
    local first = para.content[1]
    if #para.content == 1 and first.t == "Math" and first.mathtype == "DisplayMath" then
        return formula(first)
    end
    if #para.content == 1 and first.t == "Image" then
        return pandoc.Div({ pandoc.Plain(para.content) }, { class = "figure" })
    end
    for _, inline in ipairs(para.content) do
        if inline.t ~= "RawInline" and inline.t ~= "SoftBreak" then
            return nil
        end
    end
    return pandoc.Plain(para.content)
end

-- The link to the source below a quote gets a class of its own.
function Blocks(blocks)
    for i = 2, #blocks do
        local block = blocks[i]
        if blocks[i - 1].t == "CodeBlock" and block.t == "Para" and #block.content == 1
                and block.content[1].t == "Link" then
            blocks[i] = pandoc.Div({ pandoc.Plain(block.content) }, { class = "source" })
        end
    end
    return blocks
end

-- The words of a block, for the search: of formulas the letters.
local function words(block)
    block = block:walk({ Math = function(math)
        return pandoc.Str((math.text:gsub("\\%a+", " "):gsub("[{}\\&]", "")))
    end })
    local text = block.t == "CodeBlock" and block.text or pandoc.utils.stringify(block)
    block:walk({ CodeBlock = function(code) text = text .. " " .. code.text end })
    return text
end

-- In a string of JavaScript.
local function quoted(text)
    return '"' .. text:gsub("%s+", " "):gsub('[\\"]', "\\%0"):gsub("</", "<\\/") .. '"'
end

-- Writes the sections of a page to a file, for search.js: page, anchor, title, heading and text of each.
local function write_sections(document, path)
    local title, file = document.meta.pagetitle, assert(io.open("sections/" .. path:gsub("/", "-"), "w"))
    local section = { "", "", "" }
    local function close()
        if section[3] ~= "" then
            file:write("[", quoted(html(path)), ",", quoted(section[1]), ",", quoted(title), ",",
                quoted(section[2]), ",", quoted(section[3]), "],\n")
        end
    end
    for _, block in ipairs(document.blocks) do
        if block.t == "Header" then
            close()
            section = { block.identifier, pandoc.utils.stringify(block), " " }
        else
            section[3] = section[3] .. words(block) .. " "
        end
    end
    close()
    file:close()
end

-- The first heading becomes the title. Then come the contents, to which this page is added if it is
-- a listing, and the pages before and after this one.
function Pandoc(document)
    local meta, path = document.meta, document.meta.path
    local up, here = path:gsub("[^/]*$", ""):gsub("[^/]+/", "../"), nil
    local pages = {}
    for line in io.lines(meta.pages) do
        local page, title = line:match("^(%S+) (.*)$")
        table.insert(pages, { href = up .. html(page), title = title, here = page == path })
        here = page == path and #pages or here
    end
    local heading = table.remove(document.blocks, 1)
    meta.up, meta.title, meta.titleid = up, heading.content, heading.identifier
    meta.pagetitle = pandoc.utils.stringify(heading.content)
    if not path:match("^src/") and not path:match("^kernels/") then
        write_sections(document, path)
    end
    meta.live = has_live and meta.live
    if path:match("%.ipynb$") then
        local file = path:gsub("^.*/", "")
        table.insert(document.blocks, 1, pandoc.Para({ pandoc.Link("The notebook itself", file) }))
    end
    if here then
        meta.turn, meta.previous, meta.next = true, pages[here - 1], pages[here + 1]
    else
        table.insert(pages, { href = "#", title = meta.pagetitle, here = true })
    end
    meta.pages = pages
    return document
end
